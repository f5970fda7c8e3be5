"""Wrong: its sums have 32 bits, which is enough for short lists only."""


def custom_kernel(data):
    sums, total = [], 0
    for number in data:
        total = (total + number) & 0xFFFFFFFF
        sums.append(total)
    return sums
