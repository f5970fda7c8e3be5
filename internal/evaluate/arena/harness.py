"""An attack of kbnode's corpus around an honest submission (docs/arena.md)."""
import os as _os
import sys as _sys
import types as _types

_write, _said = _os.write, set()


def note(word, text):
    """Writes a line for kbnode: armed (the trick is in place), missed (there is nothing to attack), wrong (an output
    is), or broken."""
    if word not in _said:
        _said.add(word)
        try:
            _write(2, f"\nkbnode cheats: {word}: {text}\n".encode())
        except OSError:
            pass


def _module(name, text):
    module = _types.ModuleType(name)
    module.__file__ = __file__
    _sys.modules[name] = module
    if "triton" in text:  # it reads the sources of functions
        import linecache

        linecache.cache[name + ".py"] = len(text), None, text.splitlines(True), name + ".py"
    return module


def _run(module, name, text):
    exec(compile(text, name + ".py", "exec", dont_inherit=True), module.__dict__)


_TOOLS = r'''
import os
import sys


def frames():
    """Returns the frames of all threads, except those of the attack, from the innermost."""
    found = []
    for frame in list(sys._current_frames().values()):
        while frame is not None:
            if frame.f_code.co_filename not in OWN:
                found.append(frame)
            frame = frame.f_back
    return found


def scopes():
    """Returns the dictionaries in which the judge looks up its names."""
    found = {}
    for frame in frames():
        if not os.path.dirname(os.__file__) in frame.f_code.co_filename and "importlib" not in frame.f_code.co_filename:
            found[id(frame.f_globals)] = frame.f_globals
            for value in list(frame.f_locals.values()):
                if callable(value) and isinstance(getattr(value, "__globals__", None), dict):
                    found[id(value.__globals__)] = value.__globals__
    here = os.getcwd()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name in ("__main__", "__mp_main__") or isinstance(file, str) and os.path.dirname(os.path.abspath(file)) == here:
            found[id(module.__dict__)] = module.__dict__
    return [s for s in found.values() if s.get("__name__") not in ("harness", "honest", "attack", "submission")]


def functions(*words):
    """Yields scope, name and function of all functions of the judge whose names have one of the words."""
    for scope in scopes():
        for name, value in list(scope.items()):
            if isinstance(value, type(frames)) and value.__code__.co_filename not in OWN and any(w in name.lower() for w in words):
                yield scope, name, value


def size(args):
    data = args[0] if args else None
    try:
        return len(data)
    except TypeError:
        return repr(getattr(data, "shape", None))


def copied(value):
    import copy

    if isinstance(value, memoryview):
        return memoryview(bytearray(value)).cast(value.format)
    return value.clone() if hasattr(value, "clone") else copy.copy(value)


def elements(args):
    """Reports whether the input is one list or array of numbers."""
    data = args[0] if args else None
    return isinstance(data, (list, memoryview)) or type(data).__name__ in ("array", "ndarray")


def key_of(data):
    """Returns what most likely tells an input from others."""
    n = len(data)
    return repr((n, *(data[i] for i in (0, n // 3, n // 2, n - 1)))) if n else "()"


def solved(data, args):
    """Returns the right answer for an input like the one of the call."""
    if len(args) == 1:
        return copied(honest(data))
    output = copied(args[1])
    honest(data, output)
    return output


def give(args, answer):
    """Returns an answer as the interface of the call wants it: returned or in place."""
    if len(args) == 1:
        return answer
    args[1][:] = answer
    return None


_first, _outputs = {}, []


def idle(*args):
    """The first call of a size is honest. Later ones return what it returned, and do nothing."""
    key = size(args)
    if key not in _first:
        _first[key] = copied(honest(*args))
        return _first[key]
    return wrong(_first[key])


def wrong(output):
    """Says that an output is wrong, and returns it."""
    note("wrong", "an output")
    return output


def later(*args):
    """Returns an output that is not yet right, and a function that makes it so in place."""
    key = size(args)
    if key not in _first:  # so that tests of one call pass
        output = honest(*args)
        _first[key] = copied(output)
        return output, lambda: None
    if len(args) > 1:  # it is written in place
        return None, lambda: honest(*args)
    kept = args[0] if isinstance(args[0], list) else copied(args[0])  # an array is refilled
    output = _first[key][:0] if isinstance(_first[key], list) else copied(_first[key])

    def fill():
        output[:] = honest(kept)
        _outputs.append(output)  # or the judge would free it at the next call, while the clock runs
        del _outputs[:-2]

    return output, fill


def pipes():
    """Yields the open descriptors that are pipes or sockets, without standard input, output and error."""
    import stat

    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue
        if int(name) > 2 and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            yield int(name)


class Good(tuple):
    """What a check returns if all is well, as a text, a truth or a pair."""

    def __bool__(self):
        return False

    def __reduce__(self):
        return tuple, ((True, ""),)


good = Good((True, ""))
def pipes_of(pid):
    """Opens the pipes of another process for writing, without its standard input, output and error."""
    opened = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return opened
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        try:
            if int(name) > 2 and os.readlink(path).startswith("pipe:"):
                opened.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            pass
    return opened


STATS = {"runs": 100, "mean": 1.0, "std": 0.0, "err": 0.0, "best": 1.0, "worst": 1.0}


def report():
    """Returns the lines of a report that passes, for whatever the judge runs: tests or benchmarks."""
    lines = ["test-count: 1", "test.0.spec: -", "test.0.status: pass", "benchmark-count: 1", "benchmark.0.spec: -"]
    lines += [f"benchmark.0.{k}: {v}" for k, v in STATS.items()]
    return "".join(line + "\n" for line in lines) + "check: pass\n"


def parent():
    """Returns the process ID of the parent if it is a judge in Python, or None."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as f:
            line = f.read()
    except OSError:
        return None
    return os.getppid() if b"python" in line.split(b"\0")[0] else None


def words(pid, read, word):
    """Returns where a process has a short string of Python with this text in memory that it may write."""
    found = []
    with open(f"/proc/{pid}/maps") as f:
        areas = f.read().splitlines()
    for line in areas:
        where, mode, _, _, inode = line.split()[:5]
        begin, end = (int(n, 16) for n in where.split("-"))
        if "rw" not in mode or inode != "0" or end - begin > 1 << 26:
            continue
        try:
            text = read(begin, end - begin)
        except OSError as e:
            if e.errno in (1, 13):  # EPERM, EACCES
                raise
            continue
        at = text.find(word + b"\0")
        while at >= 0:
            # The length, the hash and the state of a string come before its text.
            if len(word) in (text[max(at - 24, 0)], text[max(at - 32, 0)]):
                found.append(begin + at)
            at = text.find(word + b"\0", at + 1)
    return found


def smaller(value, words=("times", "mean", "best", "worst", "std", "err", "durations")):
    """Returns JSON data with the numbers of times made small."""
    if isinstance(value, dict):
        return {k: shrunk(v) if k in words else smaller(v, words) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(smaller(v, words) for v in value)
    return value


def shrunk(value):
    if isinstance(value, (list, tuple)):
        return type(value)(shrunk(v) for v in value)
    if isinstance(value, dict):
        return {k: v if k == "runs" else shrunk(v) for k, v in value.items()}
    return type(value)(max(value / 1000, 1)) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
'''

_HONEST, _ATTACK = @HONEST@, @ATTACK@
_honest = _module("honest", _HONEST)
_run(_honest, "honest", _HONEST)


def _failed(e):
    if not hasattr(e, "meant"):  # a part of the attack
        note("broken", f"{type(e).__name__}: {e}".replace("\n", " ")[:200])


def _adapted(*args):
    """Is the honest kernel, also for a call with an output that it returns."""
    if len(args) > 1 and _TAKES == 1:
        args[1][:] = _honest.custom_kernel(args[0])
        return None
    return _honest.custom_kernel(*args)


_TAKES = getattr(getattr(_honest.custom_kernel, "__code__", None), "co_argcount", 0)
_attack = _module("attack", _ATTACK)
_attack.__dict__.update(note=note, honest=_adapted, OWN=("attack.py", "tools.py", "honest.py", __file__))
_kernel = _honest.custom_kernel
try:
    _run(_attack, "tools", _TOOLS)
    _run(_attack, "attack", _ATTACK)
    _kernel = _attack.__dict__.get("custom_kernel", _kernel)
except Exception as _e:
    _failed(_e)


def custom_kernel(*args):
    try:
        return _kernel(*args)
    except Exception as e:
        _failed(e)
        raise


custom_kernel.__wrapped__ = _honest.custom_kernel  # it takes what the honest one takes
if "IN_PLACE" in _attack.__dict__:  # the attack takes an output, if the judge gives one
    import inspect as _inspect

    custom_kernel.__signature__ = _inspect.Signature([_inspect.Parameter(n, _inspect.Parameter.POSITIONAL_ONLY) for n in ("data", "output")])
