"""The program of the examples in Python: it tests and times
submission.custom_kernel, called as `python3 eval.py MODE CASES`.

Each case runs in a process of its own, so that nothing is left of the case before
and a crash spoils one case. Such a process may change any file here for the next one:
this program and the reference are read once, before the first case, and passed on as
text. It has no way to the report, and never learns POPCORN_SEED. What it answers is
the submission's word: times are numbers that must fit the time that passed, and the
statistics are computed here. It does hold the clock and the check together with the
submission, which can fool them from the inside, as in every evaluation within one
process.

A problem's reference.py imports no other file of the problem, and has
    make(seed, **case)    the input of a case, the same for the same seed
    refill(data, fresh)   puts another input in the place of one
    check(data, output)   "", or what is wrong and where
    measure(kernel, data) the output and the nanoseconds of one call
    profile(kernel, data) one call, marked for the profiler (may be missing)
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

import json
import math
import random
import re
import select
import signal
import subprocess
import time
import types

PIPE_FAILED, VALIDATE_FAIL, TEST_SPEC, USAGE = 111, 112, 113, 2
PART = re.compile(r"\s*([A-Za-z_]+):\s*([A-Za-z]+|[+-]?[0-9]+)\s*")
MIN_RUNS, MAX_RUNS = 3, 100
ENOUGH = 0.001  # of the mean: the error from which on more calls tell nothing
MAX_SECONDS = 10
MAX_ANSWER = 1 << 16  # bytes
PR_SET_DUMPABLE = 4


def hide():
    """Keeps this process's environment, memory and files from others of the same user (prctl(2))."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError, TypeError) as e:
        print(f"a submission may read the seed here: {e}", file=sys.stderr)


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


def derived(secret):
    """Returns a seed that does not tell the secret, which may have only 31 bits: so many steps cost a guess."""
    for _ in range(200):
        secret = str(random.Random(secret).getrandbits(256))
    return secret


def one_line(text):
    return " ".join(str(text).split())[:500].encode("utf-8", "replace").decode()


def statistics(times):
    n, mean = len(times), sum(times) / len(times)
    std = math.sqrt(sum((t - mean) ** 2 for t in times) / (n - 1)) if n > 1 else 0.0
    return {"runs": n, "mean": mean, "std": std, "err": std / math.sqrt(n), "best": min(times), "worst": max(times)}


def work(job):
    """Runs one case, in a process of its own, and returns what came of it."""
    reference = types.ModuleType("reference")
    exec(compile(job["reference"], "reference.py", "exec"), reference.__dict__)
    sys.path.insert(0, os.getcwd())

    # Taken before the submission can put something else in their places.
    make, refill, check, measure = reference.make, reference.refill, reference.check, reference.measure
    profile, clock = getattr(reference, "profile", measure), time.monotonic
    case, base = dict(job["case"]), job["seed"]
    case.pop("seed", None)

    def seed(call):
        return random.Random(f"{base}/{call}").getrandbits(62)

    from submission import custom_kernel

    data = make(seed(0), **case)
    if job["mode"] == "profile":
        profile(custom_kernel, data)
        return {}
    begin, times, call = clock(), [], 0
    while True:
        if call > 0:
            # New values where the old ones were: an answer that is remembered
            # for an address, a size or the call before is wrong.
            refill(data, make(seed(call), **case))
        output, nanoseconds = measure(custom_kernel, data)
        # The input is made again, as the submission could write to its own.
        error = check(make(seed(call), **case), output)
        if error:
            return {"error": error if call == 0 else f"call {call + 1} of the same case: {error}"}
        if job["mode"] == "test":
            return {}
        if call > 0:  # the first one warms up
            times.append(nanoseconds)
        call += 1
        if len(times) < MIN_RUNS:
            continue
        known = statistics(times)
        if known["err"] < ENOUGH * known["mean"] or len(times) == MAX_RUNS or clock() - begin > MAX_SECONDS:
            return {"times": times}


def worker(fd):
    # Other programs that the submission starts do not inherit it.
    os.set_inheritable(fd, False)
    job = json.load(sys.stdin)
    try:
        result = work(job)
    except Exception as e:  # the submission's, mostly
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(e).__name__}: {e}"}
    if "error" in result:
        result["error"] = one_line(result["error"])
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # the submission closed it
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(json.dumps(result) + "\n")


def run(job):
    """Runs one case and returns its result, whatever happens to the process."""
    read, write = os.pipe()
    env = {k: v for k, v in os.environ.items() if not k.startswith("POPCORN_")}
    begin = time.monotonic_ns()
    child = subprocess.Popen([sys.executable, "-c", job["program"], "worker", str(write)], stdin=subprocess.PIPE, pass_fds=[write], env=env)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        try:
            with child.stdin:
                child.stdin.write(json.dumps(job).encode())
        except BrokenPipeError:
            pass
        line = first_line(read, child)
        elapsed = time.monotonic_ns() - begin
        result = checked(line, job["mode"], elapsed)
        if line and result is None:
            child.kill()  # it may have more to write than a pipe holds
        code = child.wait()
        os.set_blocking(read, False)
        if result is not None and not answer.read1(1):
            return result
    if line:
        return {"error": "the submission wrote into the evaluation's pipe"}
    if code < 0:
        return {"error": f"signal {-code} ({signal.strsignal(-code)}) ended the submission's process"}
    return {"error": f"the submission ended its process with exit code {code}"}


def first_line(fd, child):
    """Reads an answer. A process that the submission left may keep the pipe open when the child has ended."""
    line, ended = b"", False
    while len(line) < MAX_ANSWER and not line.endswith(b"\n"):
        if not select.select([fd], [], [], 0 if ended else 0.05)[0]:
            if ended:
                break
            ended = child.poll() is not None
            continue
        more = os.read(fd, MAX_ANSWER - len(line))
        if not more:
            break
        line += more
    return line


def checked(line, mode, elapsed):
    """Returns the result that an answer is, None if it cannot be one. elapsed is in nanoseconds."""
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(result) is not dict:
        return None
    if list(result) == ["error"] and type(result["error"]) is str:
        return result
    if mode == "test" or mode == "profile":
        return result if not result else None
    times = result.get("times")
    if list(result) != ["times"] or type(times) is not list or not MIN_RUNS <= len(times) <= MAX_RUNS:
        return None
    if any(type(t) not in (int, float) or not 1 <= t <= elapsed for t in times) or sum(times) > elapsed:
        return None
    return {"times": statistics(times)}


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

    hide()

    def say(key, value):
        print(f"{key}: {value}", file=report, flush=True)

    cases = read_cases(sys.argv[2])
    texts = {}
    for name, path in ("program", __file__), ("reference", "reference.py"):
        with open(path, encoding="utf-8") as f:
            texts[name] = f.read()
    kind, passed = "test" if mode == "test" else "benchmark", True
    say(f"{kind}-count", len(cases))
    for i, (spec, case) in enumerate(cases):
        say(f"{kind}.{i}.spec", spec)
        secret = os.environ.get("POPCORN_SEED", "")
        seed = f"{case.get('seed', 0)}/{secret}"
        if secret or mode != "test":
            # What a submission remembers of one mode is wrong in another.
            seed = derived(f"{mode}/{seed}")
        result = run(texts | {"mode": mode, "case": case, "seed": seed})
        times = result.get("times")
        if "error" in result:
            passed = False
            say(f"{kind}.{i}.status", "fail")
            say(f"{kind}.{i}.error", one_line(result["error"]))
            continue
        if mode == "test":
            say(f"test.{i}.status", "pass")
        elif mode == "profile":
            say(f"benchmark.{i}.report", "")
        else:
            for key in ("runs", "mean", "std", "err", "best", "worst"):
                say(f"benchmark.{i}.{key}", times[key] if key == "runs" else float(times[key]))
    say("check", "pass" if passed else "fail")
    return 0 if passed else VALIDATE_FAIL


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "worker":
        worker(int(sys.argv[2]))
    else:
        sys.exit(main())
