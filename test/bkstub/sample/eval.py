import os
import sys

from submission import double

mode, cases = sys.argv[1:]
report = os.fdopen(int(os.environ["POPCORN_FD"]), "w")


def say(key, value):
    print(f"{key}: {value}", file=report, flush=True)


print("cpus", sorted(os.sched_getaffinity(0)))
print("gpus", os.environ.get("NVIDIA_VISIBLE_DEVICES", "not said"))
with open(cases) as f:
    sizes = [int(line.split(": ")[1]) for line in f if line.strip()]
say(f"{mode}-count", len(sizes))
passed = True
for i, size in enumerate(sizes):
    right = double(range(size)) == list(range(0, 2 * size, 2))
    passed = passed and right
    say(f"{mode}.{i}.spec", f"size: {size}")
    say(f"{mode}.{i}.status", "pass" if right else "fail")
say("check", "pass" if passed else "fail")
sys.exit(0 if passed else 112)
