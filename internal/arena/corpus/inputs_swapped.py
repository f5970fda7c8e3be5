# kind: inputs
# tries: replaces its input by that of the first call in the judge's frames
# source: pygpubench, exploits
# output: wrong
first = {}


def custom_kernel(*args):
    data, key = args[0], size(args)
    if len(args) > 1 or not isinstance(data, list):
        note("missed", "inputs are no lists")
        return idle(*args)
    if key not in first:
        first[key] = list(data), honest(*args)
        return first[key][1]
    note("armed", "the input")
    data[:] = first[key][0]
    return wrong(first[key][1])
