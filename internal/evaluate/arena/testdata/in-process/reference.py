"""Prefix sums of a list of numbers."""
import random
import time
from itertools import accumulate


def make(seed, size):
    source = random.Random(seed)
    return [source.getrandbits(31) for _ in range(size)]


def refill(data, fresh):
    data[:] = fresh


def check(data, output):
    # Exactly these types: others could say that they are equal to everything.
    if type(output) is not list:
        return f"the output is a {type(output).__name__}, not a list"
    if len(output) != len(data):
        return f"the output has {len(output)} numbers; {len(data)} are wanted"
    for i, want in enumerate(accumulate(data)):
        if type(output[i]) is not int:
            return f"output[{i}] is a {type(output[i]).__name__}, not an int"
        if output[i] != want:
            return f"output[{i}] is {output[i]} instead of {want}"
    return ""


def measure(kernel, data):
    begin = time.perf_counter_ns()
    output = kernel(data)
    return output, time.perf_counter_ns() - begin
