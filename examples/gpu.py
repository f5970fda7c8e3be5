"""What the examples on vectors have in common: two vectors of floats on the GPU,
their sum, and how a call is timed."""
import time

import torch

if not torch.cuda.is_available():
    raise RuntimeError("torch sees no GPU")

# More than the level 2 cache of any GPU holds.
FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def make(seed, size):
    random = torch.Generator(device="cuda")
    random.manual_seed(seed)
    return tuple(torch.randn(size, generator=random, device="cuda") for _ in range(2))


def refill(data, fresh):
    for old, new in zip(data, fresh):
        old.copy_(new)


def check(data, output):
    a, b = data
    # Not a subclass, which could do the work when it is looked at.
    if type(output) is not torch.Tensor:
        return f"the output is a {type(output).__name__}, not a tensor"
    if output.shape != a.shape or output.dtype != a.dtype or output.device != a.device:
        return f"the output is {output.dtype} {list(output.shape)} on {output.device}; {a.dtype} {list(a.shape)} on {a.device} is wanted"
    # A sum of two floats is rounded once, so there is one right answer.
    sums = a + b
    wrong = (output != sums).nonzero()
    if len(wrong) == 0:
        return ""
    i = wrong[0].item()
    return f"{len(wrong)} of {len(sums)} values are wrong; the first is output[{i}] = {output[i].item()!r} instead of {sums[i].item()!r}"


def measure(kernel, data):
    FLUSH.zero_()
    torch.cuda.synchronize()
    # The clock, not events: those see one stream, and work on another would
    # cost nothing.
    begin = time.perf_counter_ns()
    output = kernel(data)
    torch.cuda.synchronize()
    return output, time.perf_counter_ns() - begin


def profile(kernel, data):
    with torch.cuda.nvtx.range("custom_kernel"):
        kernel(data)
        torch.cuda.synchronize()
