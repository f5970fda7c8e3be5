"""A judge whose cases run in a child that multiprocessing spawns once for all. The child has the clock, the
check and the statistics, and its answers come back by pickle."""
import dataclasses
import math
import multiprocessing
import os
import re
import sys
import time

from reference import check_implementation, generate_input

PART = re.compile(r"\s*([A-Za-z_]+):\s*([A-Za-z]+|[+-]?[0-9]+)\s*")


@dataclasses.dataclass
class Stats:
    runs: int
    mean: float
    std: float
    err: float
    best: float
    worst: float


def read_cases(path, secret):
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            case = {k: v if v.isalpha() else int(v) for k, v in (PART.fullmatch(p).groups() for p in line.split(";"))}
            if secret:
                case["seed"] = hash((secret, case.get("seed", 0)))
            yield line, case


def calculate_stats(durations):
    n, mean = len(durations), sum(durations) / len(durations)
    std = math.sqrt(sum((d - mean) ** 2 for d in durations) / max(n - 1, 1))
    return Stats(n, mean, std, std / math.sqrt(n), min(durations), max(durations))


def in_child_test(case):
    from submission import custom_kernel

    data = generate_input(**case)
    return check_implementation(list(data), custom_kernel(data))


def in_child_benchmark(case, recheck):
    from submission import custom_kernel

    durations, case = [], dict(case)
    for i in range(31):
        if recheck or i == 0:
            case["seed"] += 13
            data = generate_input(**case)
        begin = time.perf_counter_ns()
        output = custom_kernel(data)
        end = time.perf_counter_ns()
        if recheck or i == 0:
            good, message = check_implementation(generate_input(**case), output)
            if not good:
                return message
        if i > 0:
            durations.append(end - begin)
        if i > 2:
            stats = calculate_stats(durations)
            if stats.err < 0.001 * stats.mean:
                break
    return calculate_stats(durations)


def main():
    mode, kind = sys.argv[1], "test" if sys.argv[1] == "test" else "benchmark"
    fd = int(os.environ["POPCORN_FD"])
    os.set_inheritable(fd, False)
    report, passed = os.fdopen(fd, "w", encoding="utf-8"), True

    def say(key, value):
        print(f"{key}: {value}", file=report, flush=True)

    cases = list(read_cases(sys.argv[2], int(os.environ.get("POPCORN_SEED", "0"))))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        say(f"{kind}-count", len(cases))
        for i, (spec, case) in enumerate(cases):
            say(f"{kind}.{i}.spec", spec)
            if mode == "test":
                good, message = pool.apply(in_child_test, (case,))
                say(f"test.{i}.status", "pass" if good else "fail")
            else:
                result = pool.apply(in_child_benchmark, (case, mode == "leaderboard"))
                good, message = isinstance(result, Stats), result
                if good:
                    for field in dataclasses.fields(Stats):
                        say(f"benchmark.{i}.{field.name}", getattr(result, field.name))
                else:
                    say(f"benchmark.{i}.status", "fail")
            if not good:
                passed = False
                say(f"{kind}.{i}.error", message)
    say("check", "pass" if passed else "fail")
    return 0 if passed else 112


if __name__ == "__main__":
    sys.exit(main())
