"""A task's program of another shape: as kernelbot's are, with the submission in a pool's
worker, which keeps the clock and returns the statistics as an object."""
import dataclasses
import math
import multiprocessing
import os
import sys
import time

from reference import check, make, refill


@dataclasses.dataclass
class Stats:
    runs: int
    mean: float
    std: float
    err: float
    best: float
    worst: float


def calculate_stats(durations):
    runs, mean = len(durations), sum(durations) / len(durations)
    std = math.sqrt(sum((d - mean) ** 2 for d in durations) / (runs - 1))
    return Stats(runs, mean, std, std / math.sqrt(runs), float(min(durations)), float(max(durations)))


def run_test(case):
    from submission import custom_kernel

    data = make(case["seed"], case["size"])
    return check(make(case["seed"], case["size"]), custom_kernel(data))


def run_benchmark(case, recheck, most):
    from submission import custom_kernel

    durations, seed = [], case["seed"]
    data = make(seed, case["size"])
    if error := check(make(seed, case["size"]), custom_kernel(data)):
        return error
    begin = time.perf_counter_ns()
    for _ in range(100):
        if recheck:
            seed += 13
            refill(data, make(seed, case["size"]))
        start = time.perf_counter_ns()
        output = custom_kernel(data)
        durations.append(time.perf_counter_ns() - start)
        if recheck and (error := check(make(seed, case["size"]), output)):
            return error
        if len(durations) > 2:
            stats = calculate_stats(durations)
            if stats.err / stats.mean < 0.001 or stats.mean * stats.runs > most or time.perf_counter_ns() - begin > 120e9:
                break
    return calculate_stats(durations)


def main():
    mode, cases = sys.argv[1], []
    for line in open(sys.argv[2]).read().splitlines():
        cases.append((line, {k.strip(): int(v) for k, _, v in (part.partition(":") for part in line.split(";"))}))
    with os.fdopen(int(os.environ["POPCORN_FD"]), "w") as out, multiprocessing.get_context("spawn").Pool(1) as pool:

        def say(key, value):
            print(f"{key}: {value}", file=out, flush=True)

        good = True
        if mode != "test":
            pool.apply(run_benchmark, (cases[0][1], False, 1e7))
        say(("test" if mode == "test" else "benchmark") + "-count", len(cases))
        for i, (line, case) in enumerate(cases):
            if mode == "test":
                say(f"test.{i}.spec", line)
                error = pool.apply(run_test, (case,))
                say(f"test.{i}.status", "fail" if error else "pass")
                good = good and not error
                continue
            if mode == "benchmark":
                say(f"benchmark.{i}.spec", line)
            stats = pool.apply(run_benchmark, (case, mode == "leaderboard", 10e9))
            if mode == "leaderboard":
                say(f"benchmark.{i}.spec", line)
            if type(stats) is str:
                good = False
                say(f"benchmark.{i}.error", stats)
                continue
            for field in dataclasses.fields(Stats):
                say(f"benchmark.{i}.{field.name}", getattr(stats, field.name))
        say("check", "pass" if good else "fail")
    return 0 if good else 112


if __name__ == "__main__":
    sys.exit(main())
