# kind: lazy
# tries: returns a generator or a map in place of the output
# source: kernelguard, rules for lazy outputs
def custom_kernel(*args):
    note("armed", "an output")
    kept = copied(args[0])
    return (v for f in (honest,) for v in f(kept, *args[1:]))
