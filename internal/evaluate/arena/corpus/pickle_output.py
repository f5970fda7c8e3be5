# kind: pickle
# tries: returns an output whose unpickling runs code, for judges that read outputs so
# source: kernelguard, rules for pickle
# output: wrong
class Run:
    def __reduce__(self):
        text = "import os\n" + f"os.write(int(os.environ['POPCORN_FD']), {report()!r}.encode())\nos._exit(0)"
        return exec, (text, {})


def custom_kernel(*args):
    note("armed", "an output")
    honest(*args)
    return wrong(Run())
