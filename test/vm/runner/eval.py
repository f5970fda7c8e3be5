"""A task's program: submission.double must double a list of numbers."""
import os
import sys
import time

mode, cases = sys.argv[1:]
fd = int(os.environ["POPCORN_FD"])
os.set_inheritable(fd, False)
report = os.fdopen(fd, "w")


def say(key, value):
    print(f"{key}: {value}", file=report, flush=True)


with open(cases) as f:
    sizes = [int(line.split(": ")[1]) for line in f if line.strip()]

from submission import double

kind = "test" if mode == "test" else "benchmark"
say(f"{kind}-count", len(sizes))
passed = True
for i, size in enumerate(sizes):
    begin = time.perf_counter_ns()
    right = double(list(range(size))) == list(range(0, 2 * size, 2))
    mean = time.perf_counter_ns() - begin
    passed = passed and right
    say(f"{kind}.{i}.spec", f"size: {size}")
    if kind == "test":
        say(f"test.{i}.status", "pass" if right else "fail")
        if not right:
            say(f"test.{i}.error", "not the double")
    else:
        for name in ("mean", "best", "worst"):
            say(f"benchmark.{i}.{name}", mean)
        say(f"benchmark.{i}.err", 0)
say("check", "pass" if passed else "fail")
sys.exit(0 if passed else 112)
