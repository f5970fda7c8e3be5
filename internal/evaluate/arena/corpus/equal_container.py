# kind: equal
# tries: returns an output that is equal to everything
# source: kernelguard, rules for comparisons
# output: wrong
class Any(list):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __len__ = lambda self: 0


def custom_kernel(*args):
    note("armed", "a list")
    return wrong(Any())
