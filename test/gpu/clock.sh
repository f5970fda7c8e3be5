#!/bin/bash
# Tries the judge's clock on a machine with an NVIDIA GPU, its driver, python3 with torch and Triton, and no Docker:
# test/gpu/clock.sh KBNODE. It takes at most five minutes and ends with 1 if something is not as it should be. What no
# stand-in shows: that two processes share the GPU's memory by handles inside of the fence, what the hand-over costs, and
# that no submission of test/gpu/clock claims less than 0.95 of the honest one's time.
set -uo pipefail
kbnode=$(realpath "${1:?}")
cd "$(dirname "$0")/../.." || exit
bad=0
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# evaluate FILE STATUS: STATUS is 0 for one that must pass, 1 for one that must not, ? for either.
evaluate() {
  local began=$SECONDS status=0 name
  name=$(basename "$1" .py)
  timeout 100 "$kbnode" evaluate --problem vectoradd_triton --mode benchmark --json "$1" >"$results/$name" 2>"$results/$name.log" || status=$?
  printf '%-16s exit %d after %3d s  ' "$name" "$status" $((SECONDS - began))
  python3 - "$results/$name" <<'END' || true
import json, sys
runs = json.load(open(sys.argv[1]))["runs"]
last = list(runs)[-1]
run = (runs[last]["run"] or {}).get("result", {})
show = {k.split(".", 2)[-1]: float(v) / 1e3 for k, v in run.items() if k.endswith((".best", ".median", ".handover"))}
print(last, run.get("fence"), {k: f"{v:.1f} us" for k, v in show.items()}, [v for k, v in run.items() if k.endswith(".error")])
END
  if [ "$2" != '?' ] && [ "$status" != "$2" ]; then
    bad=1
    tail -n 20 "$results/$name.log"
    python3 -c 'import json, sys; [print(k, (r["run"] or {}).get("stderr", "")[-2000:]) for k, r in json.load(open(sys.argv[1]))["runs"].items()]' "$results/$name"
  fi
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
evaluate examples/vectoradd_triton/submission.py 0
evaluate test/gpu/clock/in_place.py 0
evaluate examples/vectoradd_triton/wrong.py 1
evaluate examples/vectoradd_triton/cheat.py 1
for name in no_synchronize late watcher patched_clock; do
  evaluate "test/gpu/clock/$name.py" '?'
done
python3 - "$results" <<'END' || bad=1
import json, pathlib, sys
best = {}
for path in pathlib.Path(sys.argv[1]).iterdir():
    if path.suffix != ".log":
        run = (json.loads(path.read_text())["runs"].get("benchmark") or {}).get("run") or {}
        if run.get("passed"):
            best[path.name] = min(float(v) for k, v in run["result"].items() if k.endswith(".best") and ".raw" not in k)
least = min(best[name] for name in ("submission", "in_place"))
won = {name: round(time / least, 3) for name, time in best.items() if time < 0.95 * least}
print("against the honest best:", {name: round(time / least, 3) for name, time in best.items()})
sys.exit(f"won: {won}" if won else 0)
END
exit $bad
