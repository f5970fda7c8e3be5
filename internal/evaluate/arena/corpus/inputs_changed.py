# kind: inputs
# tries: changes its input, so that the right answer is simple
# source: kernelguard, rules for changed inputs
# output: wrong
def custom_kernel(*args):
    data = args[0]
    note("armed", "the input")
    wrong(None)
    try:
        if hasattr(data, "zero_"):
            data.zero_()
        else:
            for i in range(len(data)):
                data[i] = 0
    except TypeError:
        note("missed", "inputs cannot be changed")
    if len(args) > 1:
        return None
    return copied(data)
