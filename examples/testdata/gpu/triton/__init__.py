"""Stands in for Triton: a kernel's programs run one after the other, on lists."""
from triton import language


def cdiv(a, b):
    return -(-a // b)


class jit:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*args, **constants):
            args = [language.Pointer(a) if hasattr(a, "data_ptr") else a for a in args]
            for language.program in range(grid[0]):
                self.kernel(*args, **constants)

        return launch
