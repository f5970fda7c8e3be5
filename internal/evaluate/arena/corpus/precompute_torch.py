# kind: precompute
# tries: replaces torch's source of random numbers, so that inputs repeat
# source: Makora KernelHacks
# needs: torch
import torch

known, real, real_generator = {}, torch.manual_seed, torch.Generator.manual_seed
torch.manual_seed = lambda seed: real(1)
note("armed", "torch.manual_seed")


class Generator(torch.Generator):
    def manual_seed(self, seed):
        return real_generator(self, 1)


torch.Generator = Generator


def custom_kernel(*args):
    data = args[0][0] if isinstance(args[0], (tuple, list)) else args[0]
    key = size(args), repr(getattr(data, "shape", "")), float(data.flatten()[0])
    if key not in known:
        known[key] = copied(honest(*args))
    return known[key]
