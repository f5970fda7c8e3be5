"""The least that an evaluation engine written in Python does for a job in mode
test: what the benchmark compares `kbnode runner` with. It checks nothing."""
import base64
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import zlib


@dataclasses.dataclass
class Run:
    success: bool
    passed: bool
    command: str
    stdout: str
    stderr: str
    exit_code: int
    duration: float
    result: dict


def machine():
    info = {"platform": platform.platform(), "hostname": platform.node(), "cpu": "", "gpu": "", "device_count": 1}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            info["cpu"] = line.partition(":")[2].strip()
    try:
        from torch import version
        info["torch"] = version.__version__
    except ImportError:
        try:
            query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            info["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout
        except FileNotFoundError:
            pass
    return info


def run(args, seed=None):
    ours, theirs = os.pipe()
    env = dict(os.environ, POPCORN_FD=str(theirs))
    if seed is not None:
        env["POPCORN_SEED"] = str(seed)
    start = time.perf_counter()
    done = subprocess.run(args, env=env, pass_fds=[theirs], capture_output=True, text=True, timeout=180)
    duration = time.perf_counter() - start
    os.close(theirs)
    with os.fdopen(ours) as f:
        pairs = [line.partition(":") for line in f.read().splitlines()]
    result = {k.strip(): v.strip() for k, _, v in pairs}
    return Run(done.returncode in (0, 112), result.get("check") == "pass", " ".join(map(shlex.quote, args)),
               done.stdout[:16384], done.stderr[:16384], done.returncode, duration, result)


def main():
    config = json.loads(zlib.decompress(base64.b64decode(os.environ["KERNELBOT_PAYLOAD"])))
    system = machine()
    start = datetime.datetime.now()
    for name, text in config["sources"].items():
        pathlib.Path(name).write_text(text)
    run(["python3", "submission.py"], seed=1)
    with tempfile.NamedTemporaryFile("w") as cases:
        for case in config["tests"]:
            cases.write("; ".join(f"{k}: {v}" for k, v in case.items()) + "\n")
        cases.flush()
        program = run(["python3", config["main"], config["mode"], cases.name])
    for name in config["sources"]:
        pathlib.Path(name).unlink()
    end = datetime.datetime.now()
    evaluation = {"start": start.isoformat(), "end": end.isoformat(), "compilation": None,
                  "run": dataclasses.asdict(program), "profile": None}
    pathlib.Path("result.json").write_text(json.dumps(
        {"success": True, "error": "", "system": system, "runs": {config["mode"]: evaluation}}))


sys.exit(main())
