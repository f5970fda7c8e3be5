# kind: times
# tries: finds lists of times among the objects of the garbage collector
# source: pygpubench, exploits
import gc


def custom_kernel(*args):
    output = honest(*args)
    for value in gc.get_objects():
        if type(value) is list and 2 < len(value) <= 1000 and value not in (args[0], output) and all(type(t) in (int, float) and 1e3 < t < 1e11 for t in value):
            value[:] = [1] * len(value)
            note("armed", "a list of numbers")
    note("missed", "no list of times is here")
    return output
