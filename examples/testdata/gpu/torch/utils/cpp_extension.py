"""Compiles an extension with the stand-in for nvcc, and calls it."""
import ctypes
import os
import subprocess
import types

import torch

TENSOR = """
#include <cmath>
namespace torch {
struct Tensor {
	float *values;
	long n;
	long numel() const { return n; }
	template <class T> T *data_ptr() const { return values; }
};
inline Tensor fill(const Tensor &like, float value) {
	Tensor t{static_cast<float *>(std::malloc(like.n * sizeof(float))), like.n};
	for (long i = 0; i < t.n; i++) t.values[i] = value;
	return t;
}
inline Tensor empty_like(const Tensor &t) { return fill(t, NAN); }
inline Tensor zeros_like(const Tensor &t) { return fill(t, 0); }
} // namespace torch
"""
CALL = """
extern "C" float *call(float *a, float *b, long n) { return %s(torch::Tensor{a, n}, torch::Tensor{b, n}).values; }
"""


def load_inline(name, cpp_sources, cuda_sources, functions, verbose):
    directory = os.path.join(os.path.expanduser("~"), name)
    os.makedirs(directory)  # torch, too, compiles below the home
    library = os.path.join(directory, name + ".so")
    with open(os.path.join(directory, name + ".cu"), "w") as f:
        f.write(TENSOR + cpp_sources + cuda_sources + CALL % functions[0])
    subprocess.run(["nvcc", name + ".cu", "-shared", "-o", library], check=True, cwd=directory)
    call = ctypes.CDLL(library).call
    call.restype, call.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    if verbose:
        print("-DTORCH_EXTENSION_NAME=" + name)
    return types.SimpleNamespace(**{functions[0]: lambda a, b: torch.Tensor(call(a.data_ptr(), b.data_ptr(), len(a))[: len(a)])})
