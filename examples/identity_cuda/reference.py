"""The copy of a vector of floats on the GPU."""
import torch

if not torch.cuda.is_available():
    raise RuntimeError("torch sees no GPU")


def make(seed, size):
    random = torch.Generator(device="cuda")
    random.manual_seed(seed)
    return torch.randn(size, generator=random, device="cuda")


def output(size):
    return torch.empty(size, dtype=torch.float32, device="cuda")


def check(data, output):
    wrong = (output != data).nonzero()
    if len(wrong) == 0:
        return ""
    i = wrong[0].item()
    return f"{len(wrong)} of {len(data)} values are wrong; the first is output[{i}] = {output[i].item()!r} instead of {data[i].item()!r}"
