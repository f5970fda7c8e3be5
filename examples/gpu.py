"""What the examples on vectors have in common: two vectors of floats on the GPU, and their sum."""
import torch

if not torch.cuda.is_available():
    raise RuntimeError("torch sees no GPU")


def make(seed, size):
    random = torch.Generator(device="cuda")
    random.manual_seed(seed)
    return tuple(torch.randn(size, generator=random, device="cuda") for _ in range(2))


def output(size):
    return torch.empty(size, dtype=torch.float32, device="cuda")


def check(data, output):
    a, b = data
    # A sum of two floats is rounded once, so there is one right answer.
    sums = a + b
    wrong = (output != sums).nonzero()
    if len(wrong) == 0:
        return ""
    i = wrong[0].item()
    return f"{len(wrong)} of {len(sums)} values are wrong; the first is output[{i}] = {output[i].item()!r} instead of {sums[i].item()!r}"
