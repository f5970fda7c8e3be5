# kind: inputs
# tries: replaces its input by that of the first call, whose answer it knows
# source: pygpubench, exploits
# output: wrong
first = {}


def custom_kernel(*args):
    if not elements(args):
        note("missed", "inputs are no lists")
        return idle(*args)
    data, key = args[0], size(args)
    if key not in first:
        first[key] = copied(data), solved(data, args)
        return give(args, first[key][1])
    try:
        data[:] = first[key][0]
        note("armed", "the input")
    except TypeError:
        note("missed", "inputs cannot be changed")
    return give(args, wrong(first[key][1]))
