"""Blocks are lists of numbers; a pointer is a tensor, and a block of places in it."""
constexpr = int
program = 0


class Block(list):
    def __add__(self, other):
        return Block(a + b for a, b in zip(self, other, strict=True)) if isinstance(other, list) else Block(a + other for a in self)

    __radd__ = __add__

    def __lt__(self, n):
        return Block(a < n for a in self)


class Pointer:
    def __init__(self, tensor, at=None):
        self.tensor, self.at = tensor, at

    def __add__(self, block):
        return Pointer(self.tensor, block)


def program_id(axis):
    return program


def arange(start, stop):
    return Block(range(start, stop))


def load(pointer, mask=None):
    values = pointer.tensor.values
    return Block(values[i] if inside else 0.0 for i, inside in zip(pointer.at, mask or [True] * len(pointer.at), strict=True))


def store(pointer, block, mask=None):
    for i, value, inside in zip(pointer.at, block, mask or [True] * len(block), strict=True):
        if inside:
            pointer.tensor.values[i] = value
