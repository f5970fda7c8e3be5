"""Prefix sums of an array of numbers."""
import random
from array import array
from itertools import accumulate


def make(seed, size):
    source = random.Random(seed)
    return array("q", [source.getrandbits(31) for _ in range(size)])


def output(size):
    return array("q", bytes(8 * size))


def check(data, output):
    want = array("q", accumulate(data))
    if output == want:
        return ""
    i = next(i for i in range(len(want)) if output[i] != want[i])
    return f"output[{i}] is {output[i]} instead of {want[i]}"
