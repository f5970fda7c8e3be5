# kind: equal
# tries: returns NaN, which is not farther from the expectation than any tolerance
# source: KernelBench, test_kernels
# output: wrong
def custom_kernel(*args):
    note("armed", "nan")
    wrong(None)
    if len(args) > 1:
        for output in (args[1] if isinstance(args[1], (tuple, list)) else args[1:2]):
            if hasattr(output, "fill_"):
                output.fill_(float("nan"))
        return None
    output = copied(honest(*args))
    if hasattr(output, "fill_") and output.is_floating_point():
        return output.fill_(float("nan"))
    return [float("nan")] * len(output) if isinstance(output, list) else output * 0
