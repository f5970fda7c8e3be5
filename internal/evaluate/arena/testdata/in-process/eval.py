"""A judge that holds the clock, the check and the statistics together with the submission, each case in a
process of its own: a short copy of examples/eval.py as it was in 2026."""
import json
import math
import os
import random
import re
import subprocess
import sys
import types

PART = re.compile(r"\s*([A-Za-z_]+):\s*([A-Za-z]+|[+-]?[0-9]+)\s*")


def read_cases(path):
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            yield line, {k: v if v.isalpha() else int(v) for k, v in (PART.fullmatch(p).groups() for p in line.split(";"))}


def statistics(times):
    n, mean = len(times), sum(times) / len(times)
    std = math.sqrt(sum((t - mean) ** 2 for t in times) / (n - 1)) if n > 1 else 0.0
    return {"runs": n, "mean": mean, "std": std, "err": std / math.sqrt(n), "best": min(times), "worst": max(times)}


def work(job):
    reference = types.ModuleType("reference")
    exec(compile(job["reference"], "reference.py", "exec"), reference.__dict__)
    sys.path.insert(0, os.getcwd())
    make, refill, check, measure = reference.make, reference.refill, reference.check, reference.measure
    case, secret = dict(job["case"]), job["secret"]
    base = case.pop("seed", 0)

    def seed(call):
        return random.Random(f"{base}/{secret}/{call}").getrandbits(62)

    from submission import custom_kernel

    data = make(seed(0), **case)
    times, call = [], 0
    while True:
        if call > 0:
            refill(data, make(seed(call), **case))
        output, nanoseconds = measure(custom_kernel, data)
        error = check(make(seed(call), **case), output)
        if error:
            return {"error": error}
        if job["mode"] == "test":
            return {}
        if call > 0:
            times.append(nanoseconds)
        call += 1
        if len(times) < 3:
            continue
        result = statistics(times)
        if result["err"] < 0.001 * result["mean"] or len(times) == 30:
            return {"times": result}


def worker(fd):
    os.set_inheritable(fd, False)
    job = json.load(sys.stdin)
    try:
        result = work(job)
    except Exception as e:
        result = {"error": f"{type(e).__name__}: {e}"}
    sys.stdout.flush()
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(json.dumps(result) + "\n")


def run(job):
    read, write = os.pipe()
    env = {k: v for k, v in os.environ.items() if not k.startswith("POPCORN_")}
    program = "import sys; sys.path = [p for p in sys.path if p]\n" + job["program"]
    child = subprocess.Popen([sys.executable, "-c", program, "worker", str(write)], stdin=subprocess.PIPE, pass_fds=[write], env=env)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        with child.stdin:
            child.stdin.write(json.dumps(job).encode())
        line = answer.readline(1 << 20)
    code = child.wait()
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {"error": f"no answer, exit code {code}"}


def main():
    mode, kind = sys.argv[1], "test" if sys.argv[1] == "test" else "benchmark"
    fd = int(os.environ["POPCORN_FD"])
    os.set_inheritable(fd, False)
    report = os.fdopen(fd, "w", encoding="utf-8")
    texts = {}
    for name, path in ("program", __file__), ("reference", "reference.py"):
        with open(path, encoding="utf-8") as f:
            texts[name] = f.read()
    cases, passed = list(read_cases(sys.argv[2])), True
    print(f"{kind}-count: {len(cases)}", file=report)
    for i, (spec, case) in enumerate(cases):
        print(f"{kind}.{i}.spec: {spec}", file=report)
        result = run(texts | {"mode": mode, "case": case, "secret": os.environ.get("POPCORN_SEED", "")})
        if mode != "test" and not isinstance(result.get("times"), dict):
            result.setdefault("error", "no times were reported")
        if "error" in result:
            passed = False
            print(f"{kind}.{i}.status: fail\n{kind}.{i}.error: {result['error']}", file=report)
        elif mode == "test":
            print(f"test.{i}.status: pass", file=report)
        else:
            for key, value in result["times"].items():
                print(f"benchmark.{i}.{key}: {value}", file=report)
    print("check:", "pass" if passed else "fail", file=report, flush=True)
    return 0 if passed else 112


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]))
    else:
        sys.exit(main())
