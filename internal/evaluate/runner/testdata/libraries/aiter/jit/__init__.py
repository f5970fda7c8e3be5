import os
import shutil

here = os.path.dirname(os.path.abspath(__file__))


def directory():
    """Where modules are compiled."""
    chosen = os.environ.get("AITER_JIT_DIR")
    if chosen is not None:
        os.makedirs(chosen, exist_ok=True)
        return chosen
    if os.access(here, os.W_OK):
        return here
    copy = os.path.expanduser("~/.aiter/jit")
    if not os.path.exists(copy):
        shutil.copytree(here, copy)
    return copy


def load(name):
    """Imports a module: with the variable from its directory, else from the package."""
    with open(os.path.join(os.environ.get("AITER_JIT_DIR", here), name + ".so")) as f:
        return f.read().strip()


def module(name):
    try:
        return load(name)
    except FileNotFoundError:
        build = os.path.join(directory(), "build", name)
        os.makedirs(build)
        with open(os.path.join(build, name + ".so"), "w") as f:
            f.write("compiled")
        shutil.copy(os.path.join(build, name + ".so"), directory())
        return load(name)


def again(name):
    """Compiles a module that is there, as for another GPU."""
    os.remove(os.path.join(directory(), name + ".so"))
    return module(name)
