"""Stands in for torch: as much of it as the examples need, on the CPU and slowly. Its GPU's memory is the driver's, for
which testdata/gpu/driver.cpp stands in."""
import contextlib
import ctypes
import math
import random
import types

float32, uint8 = "torch.float32", "torch.uint8"
TYPES = {float32: ctypes.c_float, uint8: ctypes.c_ubyte}
version = types.SimpleNamespace(hip=None)


class Tensor:
    def __init__(self, values, dtype=float32, device="cuda"):
        if not isinstance(values, ctypes.Array):
            values = list(values)
            values = (TYPES[dtype] * len(values))(*values)
        self.values, self.dtype, self.device = values, dtype, types.SimpleNamespace(type=device)
        self.shape = (len(values),)

    def numel(self):
        return len(self.values)

    __len__ = numel

    def element_size(self):
        return ctypes.sizeof(TYPES[self.dtype])

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return ctypes.addressof(self.values)

    def copy_(self, other):
        ctypes.memmove(self.values, other.values, ctypes.sizeof(self.values))

    def clone(self):
        return Tensor(self.values[:], self.dtype)

    def zero_(self):
        pass

    def view(self, dtype):
        count = ctypes.sizeof(self.values) // ctypes.sizeof(TYPES[dtype])
        other = Tensor((TYPES[dtype] * count).from_address(self.data_ptr()), dtype)
        other.base = self
        return other

    def reshape(self, shape):
        assert math.prod(shape) == len(self.values)
        return self

    def __add__(self, other):
        return Tensor(a + b for a, b in zip(self.values, other.values, strict=True))

    def __ne__(self, other):
        return Tensor((a != b for a, b in zip(self.values, other.values, strict=True)), uint8)

    def nonzero(self):
        return [types.SimpleNamespace(item=lambda i=i: i) for i, v in enumerate(self.values) if v]

    def __getitem__(self, i):
        return types.SimpleNamespace(item=lambda: self.values[i])


class Generator(random.Random):
    def __init__(self, device):
        super().__init__()

    manual_seed = random.Random.seed


def randn(size, generator, device):
    return Tensor(generator.gauss(0, 1) for _ in range(size))


def empty(size, dtype=float32, device="cpu"):
    count = size if isinstance(size, int) else math.prod(size)
    return Tensor((TYPES[dtype] * count)(), dtype, device)


def zeros_like(tensor):
    return Tensor([0] * len(tensor))


def empty_like(tensor):
    return Tensor([float("nan")] * len(tensor))


def as_tensor(owner, device):
    memory = owner.__cuda_array_interface__
    return Tensor((ctypes.c_ubyte * memory["shape"][0]).from_address(memory["data"][0]), uint8)


cuda = types.SimpleNamespace(
    is_available=lambda: True, synchronize=lambda: None, get_device_capability=lambda: (9, 0), nvtx=types.SimpleNamespace(range=lambda name: contextlib.nullcontext())
)
