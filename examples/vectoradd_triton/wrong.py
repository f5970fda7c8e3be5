"""Wrong: it adds whole blocks only, and leaves what is over."""
import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def add(a, b, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at) + tl.load(b + at))


def custom_kernel(data):
    a, b = data
    out = torch.zeros_like(a)
    blocks = a.numel() // BLOCK
    if blocks > 0:
        add[(blocks,)](a, b, out, BLOCK=BLOCK)
    return out
