# Stands in for libraries that use the home or TMPDIR, or what a variable names, and do not ask whether they can.
import os
import tempfile


def put(directory):
    os.makedirs(directory, exist_ok=True)
    new = not os.path.exists(directory + "/kernel")
    with open(directory + "/kernel", "w") as f:
        f.write("compiled")
    return "compiled" if new else "there before"


def triton():
    return put(os.environ.get("TRITON_CACHE_DIR", os.path.expanduser("~/.triton/cache")))


def inductor():
    return put(os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir() + "/torchinductor_user"))


def tinygrad():
    return put(os.path.dirname(os.environ.get("CACHEDB", os.path.expanduser("~/.cache/tinygrad/cache.db"))))


def numba():
    """Tries before it chooses, for a function in a package of the image."""
    for directory in (os.environ.get("NUMBA_CACHE_DIR"), os.path.dirname(__file__) + "/__pycache__", os.path.expanduser("~/.cache/numba")):
        if not directory:
            continue
        try:
            os.makedirs(directory, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError:
            continue
        return put(directory)
    return "cannot cache"
