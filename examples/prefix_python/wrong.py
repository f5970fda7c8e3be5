"""Wrong: its sums have 32 bits, which is enough for short inputs only."""
from array import array


def custom_kernel(data):
    sums, total = array("q"), 0
    for number in data:
        total = (total + number) & 0xFFFFFFFF
        sums.append(total)
    return sums
