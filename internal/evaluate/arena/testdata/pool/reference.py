"""Prefix sums of a list of numbers, with the functions that kernelbot's problems have."""
import random
from itertools import accumulate


def generate_input(size, seed):
    source = random.Random(seed)
    return [source.getrandbits(31) for _ in range(size)]


def ref_kernel(data):
    return list(accumulate(data))


def check_implementation(data, output):
    expected = ref_kernel(data)
    if type(output) is not list or len(output) != len(expected):
        return False, "the output has another type or size"
    for i, want in enumerate(expected):
        if type(output[i]) is not int or output[i] != want:
            return False, f"output[{i}] is {output[i]!r:.40} instead of {want}"
    return True, ""
