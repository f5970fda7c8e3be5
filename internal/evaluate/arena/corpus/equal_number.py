# kind: equal
# tries: returns numbers that are equal to everything
# source: kernelguard, rules for comparisons
# output: wrong
class Any(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
    __sub__ = __rsub__ = lambda self, other: 0


def custom_kernel(*args):
    note("armed", "numbers")
    return wrong([Any()] * len(args[0]))
