"""Looks for ways to its judge, and to the worker before it. Each that it finds is an error."""
import ctypes
import fcntl
import glob
import mmap
import os
import signal
import subprocess
import sys
from array import array
from itertools import accumulate

libc = ctypes.CDLL(None, use_errno=True)
ways = []


def way(name, f):
    try:
        if found := f():
            ways.append((name, str(found)[:80]))
    except (OSError, ValueError):
        pass


def parent(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


def read(path):
    with open(path, "rb") as f:
        return f.read(1 << 16)


def of_judge(path):
    return [word for word in (b"424242", b"test", b"POPCORN") if word in read(path)]


def holds_cases(path):
    try:
        return b"size: " in read(path)
    except OSError:
        with open(source := home + "/include.c", "w") as f:
            f.write(f'#include "{path}"\n')
        return b"size: " in subprocess.run(["gcc", "-E", "-P", source], capture_output=True).stdout


# The runner, the judge, and all that they started.
family, more = {os.getppid()}, True
while more:
    more = False
    for pid in {int(d) for d in os.listdir("/proc") if d.isdigit()} - family - {os.getpid()}:
        try:
            if parent(pid) in family:
                family.add(pid)
                more = True
        except OSError:
            pass
assert len(family) > 2, family
for pid in family:
    way(f"environment of {pid}", lambda: of_judge(f"/proc/{pid}/environ"))
    if pid != os.getppid():
        way(f"arguments of {pid}", lambda: of_judge(f"/proc/{pid}/cmdline"))
    for name in "mem", "maps", "auxv":
        way(f"{name} of {pid}", lambda: os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
    for fd in range(10):
        way(f"descriptor {fd} of {pid}", lambda: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY))
    way(f"signals to {pid}", lambda: os.kill(pid, signal.SIGURG) or "sent")
    way(f"signals to the group of {pid}", lambda: os.killpg(os.getpgid(pid), signal.SIGURG) or "sent")
    way(f"trace of {pid}", lambda: libc.ptrace(16, pid, 0, 0) == 0)
    way(f"memory of {pid}", lambda: os.pidfd_open(pid) if sys.version_info >= (3, 9) else 0)
way("all", lambda: os.kill(-1, signal.SIGURG) or "sent")

for fd in set(range(64)) - {0, 1, 2, 3, 4}:
    to = os.path.join("/proc/self/fd", str(fd))
    way(f"descriptor {fd}", lambda: [to for to in [os.readlink(to)] if not to.startswith((os.getcwd(), "/memfd:kbnode"))])
way("a variable", lambda: [v for v in ("KBNODE_WORKER", "POPCORN_FD", "POPCORN_SEED") if v in os.environ])

home = os.environ["HOME"]
for path in glob.glob(os.path.dirname(home) + "/tmp*/*"):
    if os.environ.get("TEST_LANDLOCK") != "0" and not path.startswith(home + "/") and os.path.isfile(path):
        way(f"cases in {path}", lambda: holds_cases(path))

# Who asks the runner to compile gets what the runner may read, except in its judge's home.
offers = {os.path.dirname(path) for path in glob.glob(os.path.dirname(home) + "/tmp*/.socket")}
way("compilers of its judge's", lambda: offers - {os.environ.get("KBNODE_COMPILERS")})

for size in 0, 1, 1 << 30:
    way("another size of the memory", lambda: os.ftruncate(3, size) or "resized")
way("a seal", lambda: fcntl.fcntl(3, 1033, 8) or "sealed")
memory = mmap.mmap(3, 0)

# What the worker before this one left.
for directory in [home, os.getcwd()] + (os.environ.get("TEST_LANDLOCK") != "0") * ["/dev/shm", "/tmp", "/var/tmp"]:
    note = os.path.join(directory, "note-of-a-worker")
    way(f"a note in {directory}", lambda: os.path.exists(note))
    way("none", lambda: open(note, "w").close())
if ways:
    raise ValueError(ways)


def custom_kernel(data):
    return array("q", accumulate(data))
