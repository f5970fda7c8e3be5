"""Compiles submission.cu to a library of its own, in the process that calls it, and never in that of the judge."""
import ctypes
import os
import subprocess

import torch

LIBRARY = os.path.join(os.path.expanduser("~"), "submission.so")
ARCH = "-arch=sm_%d%d" % torch.cuda.get_device_capability()
FLAGS = ["-shared", "-Xcompiler=-fPIC", "-O3", "--std=c++20", "-lineinfo", "-DELEMENT=float", ARCH]

if subprocess.run(["nvcc", *FLAGS, "submission.cu", "-o", LIBRARY]).returncode != 0:
    raise SystemExit("nvcc cannot compile submission.cu; its messages are in the program's standard error")
call = ctypes.CDLL(LIBRARY).custom_kernel
call.restype, call.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]


def custom_kernel(data, output):
    call(output.data_ptr(), data.data_ptr(), data.numel())
