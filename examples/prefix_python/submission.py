from array import array
from itertools import accumulate


def custom_kernel(data):
    return array("q", accumulate(data))
