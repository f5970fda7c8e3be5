"""Cheats: a thread starts the work after the call has returned."""
import threading

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def add(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


def honest(data, out):
    a, b = data
    add[(triton.cdiv(a.numel(), BLOCK),)](a, b, out, a.numel(), BLOCK=BLOCK)


def custom_kernel(data, output):
    threading.Timer(0.0002, honest, (data, output)).start()
