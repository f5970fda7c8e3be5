"""The judge of the examples in Python, called as `python3 eval.py MODE CASES`.

The submission runs in another process, the worker, and nothing of it runs here: this process has the clock, the
seeds, the inputs to come, the check, the statistics and the report. For each call,

    the clock starts, the input is copied into memory that both share, or a large one is shown, and the worker is told;
    the worker calls custom_kernel, puts the output into the shared memory, and says so;
    the output is copied, the clock stops, and the copy is checked.

So what a submission does to its own process changes no time, and what is not in place when it says that it is done is
not in the output. Between its calls it knows no input. `kbnode runner` starts workers where they can reach neither this
process nor its files; elsewhere nothing keeps them apart, and the report says so first.

A problem's reference.py imports no other file of the problem, and has
    make(seed, **case)    the input of a case, the same for the same seed
    output(**case)        what an output looks like
    check(data, output)   "", or what is wrong and where
Inputs and outputs are trees (tuples, lists, dicts) of arrays (array.array, of numpy, of torch) and of numbers. The
shapes of a case do not change from seed to seed. docs/problems.md has more.
"""
import os
import sys

# Python imports some modules late, such as traceback for an error, and first looks where the program is: in the
# job's directory, where a submission may put a module of its own.
JOB = {os.path.realpath(os.curdir), os.path.dirname(os.path.realpath(sys.argv[0]))}


def of_job(path):
    return any((os.path.realpath(path) + os.sep).startswith(d + os.sep) for d in JOB)


sys.path[:] = [p for p in sys.path if os.path.isabs(p) and os.path.realpath(p) not in JOB]
if sys.argv[0] != "-c" and not of_job(os.__file__):  # a worker may need packages below it
    sys.path[:] = [p for p in sys.path if not of_job(p)]

import array
import fcntl
import json
import math
import mmap
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import traceback
import types
import warnings

try:
    import ctypes
except (ImportError, OSError):
    ctypes = None  # this Python was built without it, or an earlier program took it away by its mode: hide ends a fenced judge

PIPE_FAILED, VALIDATE_FAIL, TEST_SPEC, USAGE = 111, 112, 113, 2
PART = re.compile(r"\s*([A-Za-z_]+):\s*([A-Za-z]+|[+-]?[0-9]+)\s*")
MIN_RUNS, MAX_RUNS = 3, 100
ENOUGH, ENOUGH_RUNS = 0.001, 10  # of the mean: the error from which on more calls tell nothing. Three are equal by chance
WARM_UP, LONG = 500_000, 10_000_000  # nanoseconds of calls that do not count before one that does; of a call that needs none
MAX_SECONDS = 10  # without what a worker takes to wake up: it would choose the calls that count
EMPTY_CALLS = 20  # of a worker that does nothing; the shortest counts
LONGEST_PAUSE = 2_000_000  # nanoseconds of such a call
MOST = 0.05  # of a time is subtracted: copies of large arrays take a time that varies, and no luck may be worth more
WORKER = "KBNODE_WORKER"  # the number of a socket that kbnode runner gives, to ask it for fenced workers
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
MAP_FIXED, MAP_POPULATE = 0x10, 0x8000  # of Linux, which Python's mmap has not, or has since 3.10
CONTROL = socket.CMSG_SPACE(4)  # bytes of a message that has one descriptor
VARARGS = 4  # inspect.CO_VARARGS

# Bytes from which on an input is shown, not copied: who works while it is copied gains that time. To show one takes longer below.
SHOWN = 1 << 16

# The shared memory: flags, those of each side in a cache line of their own, the text of an error, the input, the output.
GO, WARM, DONE, FAILED, PAUSE = 0, 1, 16, 32, 48  # in words of 8 bytes
ERROR, HEAD = 512, 4096
ALIGN = 64
clock = time.perf_counter_ns
LUCK = random.SystemRandom()  # which a problem does not seed


# What both processes know: trees of arrays and numbers, described by lists of JSON.

FORMATS = set("bBhHiIlLqQfd")
KINDS = set("biufcSU")  # of numpy: neither objects nor times, and no records, whose fields are not told
NUMBERS = {"int": "q", "bool": "q", "float": "d"}
NAMES = {"array": "an array.array or memoryview", "numpy": "a numpy.ndarray", "torch": "a torch.Tensor", "gpu": "a torch.Tensor on the GPU"}


class Unfit(Exception):
    """Says why a value is not what it should be."""


def kind(value):
    name = type(value)
    if name in (array.array, memoryview):
        return "array"
    if (name.__module__, name.__name__) == ("numpy", "ndarray"):
        return "numpy"
    if (name.__module__, name.__name__) == ("torch", "Tensor"):
        return "torch" if value.device.type == "cpu" else "gpu"
    return name.__name__


def layout(value, name):
    """Returns an array's type of elements, its shape, and its size in bytes."""
    if name == "array":
        v = memoryview(value)
        dtype, shape, size, fits = v.format, v.shape, v.nbytes, v.format in FORMATS and v.c_contiguous
        dtype = {"l": "q", "L": "Q"}.get(dtype, dtype)  # which are the same here
    elif name == "numpy":
        dtype, shape, size, fits = value.dtype.str, value.shape, value.nbytes, value.dtype.kind in KINDS and value.flags.c_contiguous
    elif name in ("torch", "gpu"):
        dtype, shape = str(value.dtype).replace("torch.", ""), value.shape
        size, fits = value.numel() * value.element_size(), value.is_contiguous()
    else:
        raise Unfit(f"a {name}")
    if not fits:
        raise Unfit(f"{NAMES[name]} of {dtype} that has no numbers or texts, or is not contiguous")
    return dtype, list(shape), size


def describe(value, sizes):
    """Returns the description of a tree. sizes are the bytes taken of the host's memory and of the GPU's, and grow."""
    name = kind(value)
    if name in ("tuple", "list"):
        return [name, [describe(v, sizes) for v in value]]
    if name == "dict" and all(type(k) is str for k in value):
        return [name, {k: describe(v, sizes) for k, v in value.items()}]
    if name in ("str", "NoneType"):
        return ["constant", value]
    dtype, shape, size = (None, None, 8) if name in NUMBERS else layout(value, name)
    on_gpu = name == "gpu"
    at = -(-sizes[on_gpu] // ALIGN) * ALIGN
    sizes[on_gpu] = at + size
    return [name, at, dtype, shape]


def leaves(spec, value, where):
    """Goes through a tree that should be as its description says, and yields what is in it, each with its description."""
    name = spec[0]
    if name in ("tuple", "list"):
        if type(value).__name__ != name or len(value) != len(spec[1]):
            raise Unfit(f"{where} is {named(value)}; a {name} of {len(spec[1])} is wanted")
        for i, part in enumerate(spec[1]):
            yield from leaves(part, value[i], f"{where}[{i}]")
    elif name == "dict":
        if type(value) is not dict or value.keys() != spec[1].keys():
            raise Unfit(f"{where} is {named(value)}; a dict of {', '.join(spec[1])} is wanted")
        for k, part in spec[1].items():
            yield from leaves(part, value[k], f"{where}[{k!r}]")
    elif name == "constant":
        if type(value) is not type(spec[1]) or value != spec[1]:
            raise Unfit(f"{where} is {named(value)}; {spec[1]!r} is wanted")
    elif name in NUMBERS:
        if type(value).__name__ != name or name == "int" and not -(1 << 63) <= value < 1 << 63:
            raise Unfit(f"{where} is {named(value)}; one {name} of 64 bits is wanted")
        yield spec, value
    else:
        try:
            if kind(value) != name or layout(value, name)[:2] != (spec[2], spec[3]):
                raise Unfit("")
        except Unfit:
            raise Unfit(f"{where} is {named(value)}; {NAMES[name]} of {spec[2]}{spec[3]} is wanted") from None
        yield spec, value


def named(value):
    name = kind(value)
    try:
        dtype, shape, _ = layout(value, name)
        return f"{NAMES[name]} of {dtype}{shape}"
    except Unfit as e:
        return f"a {name} of {len(value)}" if name in ("tuple", "list", "dict") else str(e)


def store(spec, value, memory, gpu, where):
    """Writes a tree to where its description says; without gpu, only what is in the host's memory."""
    for (name, at, dtype, shape), leaf in leaves(spec, value, where):
        if name in NUMBERS:
            struct.pack_into(NUMBERS[name], memory, at, leaf)
        elif name == "gpu":
            if gpu:
                gpu.tensor(at, dtype, shape).copy_(leaf)
        elif name == "torch":
            view([name, at, dtype, shape], memory, gpu).copy_(leaf)
        elif math.prod(shape):
            # Of numpy's, Python casts only what its struct knows: no complex numbers, texts, or bytes in another order.
            flat = memoryview(leaf.reshape(-1).view("u1") if name == "numpy" else leaf).cast("B")
            memory[at : at + len(flat)] = flat


def view(spec, memory, gpu):
    """Returns the tree that a description says, its arrays in place."""
    name = spec[0]
    if name in ("tuple", "list"):
        parts = [view(part, memory, gpu) for part in spec[1]]
        return tuple(parts) if name == "tuple" else parts
    if name == "dict":
        return {k: view(part, memory, gpu) for k, part in spec[1].items()}
    if name == "constant":
        return spec[1]
    _, at, dtype, shape = spec
    if name in NUMBERS:
        value = struct.unpack_from(NUMBERS[name], memory, at)[0]
        return bool(value) if name == "bool" else value
    if name == "gpu":
        return gpu.tensor(at, dtype, shape)
    count = math.prod(shape)
    if name == "array":
        flat = memoryview(memory)[at : at + count * struct.calcsize(dtype)].cast("B")
        return flat.cast(dtype) if count == 0 else flat.cast(dtype, shape)
    if name == "numpy":
        import numpy

        return numpy.frombuffer(memory, numpy.dtype(dtype), count, at).reshape(shape)
    import torch

    empty = torch.empty(shape, dtype=getattr(torch, dtype))
    return empty if count == 0 else torch.frombuffer(memory, dtype=empty.dtype, count=count, offset=at).reshape(shape)


def parts(spec):
    """Yields the names of what is in a tree."""
    if spec[0] in ("tuple", "list", "dict"):
        for part in spec[1].values() if spec[0] == "dict" else spec[1]:
            yield from parts(part)
    else:
        yield spec[0]


def sealed(size):
    """Returns a file in memory that keeps its size."""
    fd = os.memfd_create("kbnode", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


class Memory:
    """Shared memory, and the flags in it. No side can change its size."""

    def __init__(self, fd):
        self.fd, self.lock = fd, threading.Lock()
        os.set_inheritable(fd, False)
        self.bytes = memoryview(mmap.mmap(fd, 0))
        self.flags = self.bytes[:ERROR].cast("Q")

    @classmethod
    def new(cls, size):
        return cls(sealed(HEAD + size))

    def ring(self, flag, value):
        with self.lock:  # orders what was written before on any processor
            pass
        self.flags[flag] = value


class Window:
    """Where the worker sees the inputs that it is shown, one at a time, in place."""

    def __init__(self, size):
        self.bytes = memoryview(mmap.mmap(-1, size))
        self.at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE
        self.map, self.start = ctypes.CDLL(None, use_errno=True).mmap, ctypes.c_long(0)
        self.map.restype, self.files = ctypes.c_void_p, []

    def show(self, channel):
        fd = int.from_bytes(channel.recvmsg(1, CONTROL)[1][0][2], sys.byteorder)
        self.files.append(fd)
        if self.map(*self.at, mmap.MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, self.start) != self.at[0].value:
            raise MemoryError("the input cannot be mapped")

    def clear(self):
        self.map(*self.at, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, -1, self.start)
        while self.files:
            os.close(self.files.pop())


class GPU:
    """Memory of the GPU that two processes share, by CUDA's or HIP's handles. It is no part of torch's pools, in which
    there may be other data beside it."""

    BLOCK = 2 << 20  # what the driver shares at least

    def __init__(self, size, handle=None):
        import torch

        torch.empty(1, device="cuda")  # makes the context
        if torch.version.hip:
            driver = ctypes.CDLL("libamdhip64.so")
            allocate, free, export, attach = driver.hipMalloc, driver.hipFree, driver.hipIpcGetMemHandle, driver.hipIpcOpenMemHandle
        else:
            driver = ctypes.CDLL("libcuda.so.1")
            allocate, free, export, attach = driver.cuMemAlloc_v2, driver.cuMemFree_v2, driver.cuIpcGetMemHandle, driver.cuIpcOpenMemHandle_v2

        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]

        address = ctypes.c_void_p()
        if handle is None:
            size = -(-max(size, 1) // self.BLOCK) * self.BLOCK
            own = Handle()
            self.free = lambda: free(address)
            codes = [allocate(ctypes.byref(address), ctypes.c_size_t(size)), export(ctypes.byref(own), address)]
            self.handle = bytes(own.bytes).hex()
        else:
            codes = [attach(ctypes.byref(address), Handle.from_buffer_copy(bytes.fromhex(handle)), ctypes.c_uint(1))]
        if any(codes):
            raise RuntimeError(f"the driver shares no memory of the GPU: errors {codes}")
        self.torch, self.address = torch, address.value

    def tensor(self, at, dtype, shape):
        dtype = getattr(self.torch, dtype)
        empty = self.torch.empty([0], dtype=dtype, device="cuda")
        count = math.prod(shape)
        if count == 0:
            return empty.reshape(shape)
        self.__cuda_array_interface__ = {
            "shape": (count * empty.element_size(),), "typestr": "|u1", "data": (self.address + at, False), "version": 3,
        }
        return self.torch.as_tensor(self, device="cuda").view(dtype).reshape(shape)


def one_line(text):
    return " ".join(str(text).split())[:500].encode("utf-8", "replace")


def hide():
    """Keeps this process's environment, memory, files and arguments from others of the same user (prctl(2), proc(5))."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        with open("/proc/self/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
        ctypes.memset(start, 0, end - start)
    except (OSError, AttributeError, TypeError, ValueError, IndexError) as e:
        if WORKER in os.environ:
            sys.exit(f"the judge cannot hide from the submission: {e}")
        print(f"a submission may read the seed here: {e}", file=sys.stderr)


def die_with_parent():
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError, TypeError):
        pass  # it ends with its program


# The worker's side. It belongs to the submission: nothing that it says counts but the bytes of an output, and an error.


def worker(memory, channel):
    memory, channel = Memory(memory), socket.socket(fileno=channel)
    size = int.from_bytes(channel.recv(8, socket.MSG_WAITALL), "little")
    setup = json.loads(channel.recv(size, socket.MSG_WAITALL))
    try:
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = ["eval.py"]
        serve(setup, memory, channel)
    except BaseException as e:  # the submission's, mostly
        if not isinstance(e, Unfit):
            traceback.print_exc()
        text = one_line(e if isinstance(e, Unfit) else f"{type(e).__name__}: {e}")
        memory.bytes[ERROR : ERROR + len(text)] = text
        memory.ring(FAILED, len(text))
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            pass  # the submission closed it
        os._exit(1)


def serve(setup, memory, channel):
    if len(setup["cores"]) > 1:
        os.sched_setaffinity(0, setup["cores"][1:])
    size = setup["sizes"][0]
    # Of inputs that are shown, a call that does not count and one that does each have a window: to clear one takes time.
    windows = [Window(size), Window(size)] if setup["shown"] else []
    sources = [w.bytes for w in windows] or [memory.bytes[HEAD : HEAD + size]] * 2
    target = memory.bytes[HEAD + size :]
    source_gpu = target_gpu = finish = None
    if setup["empty"]:
        kernel, in_place = pause, True
    else:
        if setup["gpu"]:
            source_gpu, target_gpu = (GPU(0, handle) for handle in setup["gpu"])
            finish = source_gpu.torch.cuda.synchronize
        import submission

        kernel = getattr(submission, "custom_kernel", None)
        if not callable(kernel):
            raise Unfit("the submission has no function custom_kernel; define custom_kernel(data) or custom_kernel(data, output)")
        in_place = takes_output(kernel)
        if setup["profile"] and finish:
            kernel = marked(kernel, source_gpu.torch.cuda)
    flags, spin, empty = memory.flags, len(setup["cores"]) > 1, setup["empty"]
    numbers = not empty and any(name in NUMBERS for name in parts(setup["input"]))
    output, arguments, seen, touched, zeros = None, [(flags,)] * 2, 0, bytearray(size), bytes(len(target))
    while True:
        # After an odd number, which asks whether this process runs, a call comes at once. Else it sleeps until the next one.
        # With WARM, an odd number is a call, too, with an input that this process had.
        if not (spin and seen & 1) and not channel.recv(1):
            os._exit(0)  # the judge has gone
        while flags[GO] == seen:
            pass
        seen = flags[GO]
        odd = seen & 1
        called = not odd or flags[WARM]
        if not called:
            for window in windows:
                window.clear()
        elif windows:
            windows[odd].show(channel)
        if odd and empty:  # as a kernel leaves it in this core's cache
            touched[:] = sources[odd]
            target[:] = zeros
        elif odd or numbers:
            output = view(setup["output"], target, target_gpu)
            arguments[: 1 + odd] = [(view(setup["input"], source, source_gpu), output)[: 1 + in_place] for source in sources[: 1 + odd]]
        if called:
            result = kernel(*arguments[odd])
            if result is not None and result is not output:
                store(setup["output"], result, target, target_gpu, "the output")
            elif result is None and not in_place:
                raise Unfit("custom_kernel returned nothing; it must return the output, or take it as its second argument")
            if finish:
                finish()
        with memory.lock:  # orders what was written before on any processor
            pass
        flags[DONE] = seen
        if not spin:
            channel.send(b"x")


def marked(kernel, cuda):
    """Returns a kernel, marked for the profiler."""

    def call(*arguments):
        with cuda.nvtx.range("custom_kernel"):
            result = kernel(*arguments)
            cuda.synchronize()
            return result

    return call


def pause(flags):
    """Takes as long as it is told, as a kernel that leaves nothing in the caches of what comes after it."""
    end, work = clock() + flags[PAUSE], bytearray(1 << 14)
    while clock() < end:
        work[:] = reversed(work)
    flags[PAUSE] = clock() - end + flags[PAUSE]


def takes_output(kernel):
    """Says whether a function must be given two arguments, and refuses a plain one that takes neither one nor two."""
    if type(kernel) is types.FunctionType and not {"__wrapped__", "__signature__"} & vars(kernel).keys():
        code = kernel.__code__
        needed, taken = code.co_argcount - len(kernel.__defaults__ or ()), code.co_argcount + bool(code.co_flags & VARARGS)
        if needed > 2 or taken < 1:
            raise Unfit(f"custom_kernel takes {max(needed, 0)} arguments; define custom_kernel(data) or custom_kernel(data, output)")
    else:  # which may not tell what it takes
        import inspect

        try:
            parameters = inspect.signature(kernel).parameters.values()
        except (TypeError, ValueError):
            return False
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = sum(p.default is p.empty for p in positional)
    return needed == 2


# The judge's side.


class Ended(Exception):
    """Says how a worker ended."""


class Bare:
    """A worker's process where nothing keeps it from this one."""

    def __init__(self, argv, fds):
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment(), start_new_session=True)
        self.pid = self.process.pid

    def code(self):
        """Returns the exit code, None of a process that runs."""
        return self.process.poll()

    def end(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # all of its group ended
        self.process.wait()


class Fenced:
    """A worker's process that kbnode runner starts: it can write to its own home only, and reach no process but its own.
    Orders and answers are messages on a socket; the end of the process is a message, too."""

    control = None

    def __init__(self, argv, fds, cores):
        self.ended = None
        if not Fenced.control:
            Fenced.control = socket.socket(fileno=int(os.environ[WORKER]))
            Fenced.control.set_inheritable(False)
        socket.send_fds(self.control, [json.dumps({"argv": argv, "cores": cores}).encode()], [1, 2, *fds])
        self.pid = self.answer()["pid"]

    def answer(self):
        text = self.control.recv(1 << 16)
        answer = json.loads(text) if text else {"error": "kbnode runner has gone"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.ended = answer.get("ended", self.ended)
        return answer

    def code(self):
        if self.ended is None and select.select([self.control], [], [], 0)[0]:
            self.answer()
        return self.ended

    def end(self):
        self.control.send(json.dumps({"do": "end"}).encode())
        while self.answer().get("done") != "end":
            pass


class Own:
    """A process of this program's own, which serves as a worker."""

    def __init__(self, serve):
        self.ended = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which it does not need
            self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                serve()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def code(self):
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.ended = os.waitstatus_to_exitcode(status) if pid else None
        return self.ended

    def end(self):
        if self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("POPCORN_") and k != WORKER}


class Worker:
    """A worker, and the memory that is shared with it. Without a program, it does nothing."""

    file = None  # of the input that the worker is shown

    def __init__(self, program, case, setup):
        self.case, self.number, self.spin = case, 0, len(setup["cores"]) > 1
        size, output_size = case.sizes[0], case.output_sizes[0]
        self.memory, self.shows = Memory.new(size + output_size), bool(self.spin and ctypes and size >= SHOWN)
        self.source, self.target = self.memory.bytes[HEAD : HEAD + size], self.memory.bytes[HEAD + size :]
        self.warm = memoryview(bytearray(max(size, output_size)))
        self.copy, self.gpu, self.sources, self.targets, self.copies = memoryview(bytearray(output_size)), [], [], [], []
        if case.on_gpu:
            self.gpu = [GPU(case.sizes[1]), GPU(case.output_sizes[1])]
            self.sources, self.targets = ([gpu.tensor(*spec[1:]) for spec in specs] for gpu, specs in zip(self.gpu, case.on_gpu))
            self.copies = [t.clone() for t in self.targets]
        self.channel, theirs = socket.socketpair()
        setup = setup | {
            "input": case.input, "output": case.output, "sizes": case.sizes, "gpu": [gpu.handle for gpu in self.gpu], "empty": not program, "shown": self.shows,
        }
        if not program:
            self.process = Own(lambda: serve(setup, self.memory, theirs))
        else:
            fenced = WORKER in os.environ
            numbers = (3, 4) if fenced else (self.memory.fd, theirs.fileno())
            start = "" if fenced else "die_with_parent()\n"  # else the runner ends it
            argv = [sys.executable, "-c", f"{program}\n\n{start}worker{numbers}\n"]
            self.process = Fenced(argv, [self.memory.fd, theirs.fileno()], setup["cores"][1:]) if fenced else Bare(argv, numbers)
            text = json.dumps(setup).encode()
            try:
                self.channel.sendall(len(text).to_bytes(8, "little") + text)
            except OSError:
                pass  # it ended, and ready says how
        theirs.close()

    def end(self):
        self.process.end()
        self.channel.close()  # with files that were sent and no one received: they may take memory
        if self.file is not None:
            os.close(self.file)
        for gpu in self.gpu:
            gpu.free()

    def tensor(self, at, dtype, shape):
        """Returns the copy of an output on the GPU."""
        return next(copy for spec, copy in zip(self.case.on_gpu[1], self.copies) if spec[1] == at)

    def ready(self):
        """Waits until the submission is loaded."""
        self.number = 1
        self.tell(1)
        while self.memory.flags[DONE] != 1:
            self.alive(0)
            time.sleep(0.0005)

    def wake(self):
        """Waits until the worker runs."""
        if not self.number & 1:
            self.next()
            self.memory.flags[WARM] = 0
            self.tell(self.number)
            self.wait(self.number)

    def warm_up(self, data, took, length=WARM_UP):
        """Has the worker, which is awake, called with an input that it had. took is how long that took. A core that slept is
        slow for some time, and a submission that did not sleep, or called itself, would be faster than others."""
        if self.file is None:
            self.hold(data[0])
        end = clock() + length
        while took < LONG:
            self.next(2)
            self.put(data)
            if self.gpu:
                self.case.synchronize()
            self.memory.flags[WARM] = 1
            self.tell(self.number, asleep=False)
            self.wait(self.number)
            if clock() >= end:
                break

    def next(self, step=1):
        """Takes another number. The worker cannot know it before: an answer was given after the question."""
        self.number += step + 2 * LUCK.getrandbits(20)

    def hold(self, text):
        """Has an input that is to be shown ready, where the worker cannot see it."""
        if self.shows:
            if self.file is not None:
                os.close(self.file)
            self.file = sealed(len(text))
            written = 0
            while written < len(text):
                written += os.pwrite(self.file, memoryview(text)[written:], written)

    def put(self, data):
        text, tensors = data
        if self.shows:
            self.send((socket.SOL_SOCKET, socket.SCM_RIGHTS, self.file.to_bytes(4, sys.byteorder)))
        else:
            self.source[:] = text
        for target, source in zip(self.sources, tensors):
            target.copy_(source)

    def tell(self, number, asleep=True):
        self.memory.ring(GO, number)
        if number & asleep or not self.spin:
            self.send()

    def send(self, *ancillary):
        try:
            self.channel.sendmsg([b"x"], ancillary, socket.MSG_DONTWAIT)
        except OSError:
            pass  # it ended, and wait says how, or it does not read

    def wait(self, number):
        flags, before = self.memory.flags, self.memory.flags[DONE]
        while True:
            for _ in range(1000 if self.spin else 1):
                if flags[DONE] == number:
                    return
            self.alive(before)
            if not self.spin and select.select([self.channel], [], [], 0.1)[0]:
                try:
                    self.channel.recv(1)
                except OSError:
                    pass  # it ended, and alive says how

    def alive(self, before):
        """Raises an exception if there is nothing to wait for. before is what the worker answered before."""
        code = self.process.code()
        if code is None:
            if self.memory.flags[DONE] not in (before, self.number):
                raise Ended("the submission wrote to where its judge looks")
            return
        size = self.memory.flags[FAILED]
        if 0 < size <= HEAD - ERROR:
            raise Ended(bytes(self.memory.bytes[ERROR : ERROR + size]).decode("utf-8", "replace"))
        if code < 0:
            raise Ended(f"signal {-code} ({signal.strsignal(-code)}) ended the submission's process")
        raise Ended(f"the submission ended its process with exit code {code}")

    def call(self, data):
        """Has the worker, which is awake, called with an input, and returns the nanoseconds. The output is in the copies."""
        text, cut = data[0], LUCK.randrange(len(self.copy) + 1)
        self.next()
        self.hold(text)
        # Into this core's cache, as for a worker that does nothing.
        self.warm[: len(text)] = text
        self.copy[:] = self.warm[: len(self.copy)]
        begin = clock()
        self.put(data)
        if self.gpu:
            self.case.flush()
        self.tell(self.number)
        self.wait(self.number)
        # From a place that the worker cannot know: what it still writes now, it cannot write before that is copied.
        self.copy[cut:] = self.target[cut:]
        self.copy[:cut] = self.target[:cut]
        if self.gpu:
            for target, source in zip(self.copies, self.targets):
                target.copy_(source)
            self.case.synchronize()
        took = clock() - begin
        self.hold(text)  # for warm_up: the submission may have written to the other one
        return took


class Faulty(Exception):
    """Says what is wrong with the problem."""


class Case:
    """One line of the cases."""

    def __init__(self, reference, spec, values, base):
        for name in "make", "output", "check":
            if not callable(getattr(reference, name, None)):
                raise Faulty(f"reference.py has no function {name}, which the judge calls")
        self.reference, self.base, self.sizes, self.output_sizes = reference, base, [0, 0], [0, 0]
        self.values = {k: v for k, v in values.items() if k != "seed"}
        try:
            example = self.make(0), reference.output(**self.values)
            self.input, self.output = describe(example[0], self.sizes), describe(example[1], self.output_sizes)
        except Unfit as e:
            raise Faulty(f"reference.py makes {e} for the case {spec!r}, which cannot be shared") from None
        except TypeError as e:
            last = e.__traceback__
            while last.tb_next:
                last = last.tb_next
            if last.tb_frame.f_code in (Case.__init__.__code__, Case.make.__code__):  # of the call, not in it
                raise Faulty(f"the case {spec!r} of task.yml does not fit reference.py: {e}") from None
            raise
        self.sizes[0] = -(-self.sizes[0] // ALIGN) * ALIGN
        trees = (self.input, example[0]), (self.output, example[1])
        self.on_gpu = [[part for part, _ in leaves(*tree, "") if part[0] == "gpu"] for tree in trees]
        if not any(self.on_gpu):
            self.on_gpu = None
        else:
            import torch

            # More than the level 2 cache of any GPU holds.
            self.cache = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            self.synchronize = torch.cuda.synchronize

    def flush(self):
        """Empties the GPU's caches of what was copied."""
        self.cache.zero_()
        self.synchronize()

    def check_once(self):
        """Has check import what it imports when it is first called. Beside a worker, that could be the submission's:
        without Landlock, root's may write to where Python finds modules, and clean up."""
        try:
            self.reference.check(self.make(0), self.reference.output(**self.values))
        except Exception:
            pass  # an example is no answer

    def make(self, call):
        return self.reference.make(random.Random(f"{self.base}/{call}").getrandbits(62), **self.values)

    def packed(self, call):
        """Returns the input of a call, and what of it is copied: bytes of the host's memory, and tensors on the GPU."""
        data, text = self.make(call), bytearray(self.sizes[0])
        try:
            store(self.input, data, memoryview(text), None, "what reference.make returns for another seed")
            return data, (text, [leaf for part, leaf in leaves(self.input, data, "") if part[0] == "gpu"])
        except Unfit as e:
            raise Faulty(str(e)) from None

    def wrong(self, data, worker):
        try:
            error = self.reference.check(data, view(self.output, worker.copy, worker))
            return one_line(error).decode() if error else ""
        except Exception as e:  # of numbers that it does not expect
            raise Unfit(f"check raised {type(e).__name__}: {e}") from e


def judge(say, mode, texts, lines, secret):
    """Judges all cases, and reports them line by line."""
    reference = types.ModuleType("reference")
    exec(compile(texts["reference"], "reference.py", "exec"), reference.__dict__)
    cores = sorted(os.sched_getaffinity(0))
    kind, passed = "test" if mode == "test" else "benchmark", True
    say("fence", "kbnode" if os.environ.get(WORKER) else "none; a submission that attacks its judge can fake what follows")
    if len(cores) < 2:
        say("handover", "through a pipe, as there is one core; times have some microseconds more")
    elif mode in ("benchmark", "leaderboard"):
        os.sched_setaffinity(0, cores[:1])
    say(f"{kind}-count", len(lines))
    setup = {"cores": cores, "profile": mode == "profile"}
    for i, (spec, values) in enumerate(lines):
        say(f"{kind}.{i}.spec", spec)
        seed = f"{values.get('seed', 0)}/{secret}"
        if mode != "test":
            # A secret may be the same for all submissions: what one of them told, the next could know.
            seed = os.urandom(32).hex()
        elif secret:
            seed = derived(seed)
        case = Case(reference, spec, values, seed)
        if i == 0:
            case.check_once()
        try:
            times = run(texts["program"], case, setup, mode)
        except (Ended, Unfit) as e:
            if e.__cause__:
                traceback.print_exc()
            passed = False
            say(f"{kind}.{i}.status", "fail")
            say(f"{kind}.{i}.error", one_line(e).decode())
            continue
        if mode == "test":
            say(f"test.{i}.status", "pass")
        elif mode == "profile":
            say(f"benchmark.{i}.report", "")
        else:
            for key, value in times.items():
                say(f"benchmark.{i}.{key}", value)
    say("check", "pass" if passed else "fail")
    return 0 if passed else VALIDATE_FAIL


def run(program, case, setup, mode):
    """Runs one case, and returns what its calls took."""
    timed = mode in ("benchmark", "leaderboard")
    worker = Worker(program, case, setup)
    try:
        worker.ready()
        raw, disturbed, waited, last = calls(case, worker, timed)
    finally:
        worker.end()
    if not timed:
        return None
    known = statistics(raw)
    handover = shortest(case, setup, last, int(min(known["median"], LONGEST_PAUSE)))
    times = [t - min(handover, MOST * t) for t in raw]
    return statistics(times) | {
        "handover": float(handover), "raw.mean": known["mean"], "raw.best": known["best"], "raw.worst": known["worst"], "disturbed": disturbed, "waited": waited,
        "calls": " ".join(f"{t:.0f}" for t in times),  # MAX_RUNS at most
    }


def calls(case, worker, timed):
    """Returns what calls took, in how many this process lost its core, the nanoseconds in which the submission kept it waiting
    before them, and the last input. All of them count: a submission could disturb those that were slow."""
    raw, call, disturbed, waited, spent, packed = [], 0, 0, 0, 0.0, None
    while True:
        begin = time.monotonic()
        last, (data, packed) = packed, case.packed(call)
        slept = time.monotonic()
        worker.wake()
        if call:
            worker.warm_up(last, elapsed)
        slept = time.monotonic() - slept
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        elapsed = worker.call(packed)
        disturbed += timed and call > 0 and switches != resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        if error := case.wrong(data, worker):
            raise Unfit(error if call == 0 else f"call {call + 1} of the same case: {error}")
        call += 1
        if not timed:
            break
        if call == 1:
            continue  # it warms up, and takes no time from those that count
        spent += time.monotonic() - begin - slept
        waited += max(0, int(slept * 1e9) - WARM_UP - elapsed)
        raw.append(elapsed)
        if len(raw) < MIN_RUNS:
            continue
        known = statistics(raw)
        enough = known["err"] < ENOUGH * known["mean"] and len(raw) >= ENOUGH_RUNS
        if enough or len(raw) == MAX_RUNS or spent > MAX_SECONDS:
            break
    return raw, disturbed, waited, packed


def shortest(case, setup, packed, length):
    """Returns the nanoseconds that the hand-over takes at least, of calls that take as long as the submission's. That must
    have ended: it could make them slow."""
    empty = Worker("", case, setup)
    try:
        empty.ready()
        times = []
        for _ in range(EMPTY_CALLS):
            empty.wake()
            empty.warm_up(packed, 0, 0)
            empty.memory.flags[PAUSE] = length
            times.append(empty.call(packed) - empty.memory.flags[PAUSE])
        return min(times)
    except Ended as e:
        raise RuntimeError(f"{e}, which was the judge's own") from None
    finally:
        empty.end()


def statistics(times):
    n, mean = len(times), sum(times) / len(times)
    std = math.sqrt(sum((t - mean) ** 2 for t in times) / (n - 1)) if n > 1 else 0.0
    return {"runs": n, "mean": mean, "std": std, "err": std / math.sqrt(n), "best": float(min(times)), "worst": float(max(times)), "median": float(sorted(times)[n // 2])}


def derived(secret):
    """Returns a seed that does not tell the secret, which may have only 31 bits: so many steps cost a guess."""
    for _ in range(200):
        secret = str(random.Random(secret).getrandbits(256))
    return secret


def read_cases(path):
    cases = []
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            case = {}
            for part in line.split(";"):
                match = PART.fullmatch(part)
                if not match:
                    print(f"cannot read {part!r} of the test {line!r}; write name: number, or name: word", file=sys.stderr)
                    sys.exit(TEST_SPEC)
                key, value = match.groups()
                case[key] = value if value.isalpha() else int(value)
            cases.append((line, case))
    return cases


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("test", "benchmark", "leaderboard", "profile"):
        return USAGE
    mode = sys.argv[1]
    try:
        fd = int(os.environ["POPCORN_FD"])
        os.set_inheritable(fd, False)
        report = os.fdopen(fd, "w", encoding="utf-8", errors="replace")
    except (KeyError, ValueError, OSError):
        return PIPE_FAILED
    lines = read_cases(sys.argv[2])
    texts = {}
    for name, path in ("program", __file__), ("reference", "reference.py"):
        with open(path, encoding="utf-8") as f:
            texts[name] = f.read()
    texts["program"] = texts["program"].partition("\n# The judge's side.\n")[0]
    hide()
    return supervise(report, "test.0" if mode == "test" else "benchmark.0", lambda say: judge(say, mode, texts, lines, os.environ.pop("POPCORN_SEED", "")))


def supervise(report, last, work):
    """Runs the judge in a process of its own, and reports what it says. It has the last word if a signal ends the judge.
    last is the case that is then told of, until the judge says another."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        report.close()
        out = os.fdopen(write, "w", encoding="utf-8", errors="replace")
        code = 1
        try:
            die_with_parent()
            code = work(lambda key, value: print(f"{key}: {value}", file=out, flush=True))
        except Faulty as e:
            print(f"fault: {one_line(e).decode()}", file=out, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    fault = "the judge failed; its standard error says why"
    with os.fdopen(read, encoding="utf-8", errors="replace", newline="\n") as said:
        for line in said:
            if not line.endswith("\n"):
                break  # its process ended within it
            if line.startswith("fault: "):
                fault = line.removeprefix("fault: ").rstrip("\n")
                continue
            if line.partition(": ")[0].endswith(".spec"):
                last = line.partition(".spec")[0]
            report.write(line)
            report.flush()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (0, VALIDATE_FAIL):
        return code
    why = f"signal {-code} ({signal.strsignal(-code)}) ended the judge" if code < 0 else fault
    for line in f"{last}.status: fail", f"{last}.error: {why}", "check: fail":
        print(line, file=report, flush=True)
    return VALIDATE_FAIL if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
