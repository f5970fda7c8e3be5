"""Cheats: it computes once for a list, and remembers the answer by the list's
identity, though there are other numbers in the list by the next call."""
from itertools import accumulate

answers = {}


def custom_kernel(data):
    if id(data) not in answers:
        answers[id(data)] = list(accumulate(data))
    return answers[id(data)]
