"""Prefix sums of an array of numbers."""
import random
from array import array
from itertools import accumulate


def make(seed, size):
    return array("q", list(map(random.Random(seed).getrandbits, [31] * size)))


def output(size):
    return array("q", bytes(8 * size))


def check(data, output):
    want, output = list(accumulate(data.tolist())), output.tolist()
    if output == want:
        return ""
    i = next(i for i in range(len(want)) if output[i] != want[i])
    return f"output[{i}] is {output[i]} instead of {want[i]}"
