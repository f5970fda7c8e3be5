#!/bin/bash
# Evaluates the examples on a machine with an NVIDIA GPU, its driver, python3 with torch and Triton, nvcc and ncu, and
# no Docker: test/gpu/examples.sh KBNODE [PROBE]. It takes five to eight minutes and ends with 1 if something is not as
# it should be. What no stand-in shows: that CUDA, compilers and the profiler work inside of a program's fence, and
# that the driver's own NVML answers the probe.
set -uo pipefail
kbnode=$(realpath "${1:?}")
probe=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.." || exit
bad=0

# evaluate PROBLEM SUBMISSION MODE STATUS: STATUS is 0 for one that passes and 1 for one that does not.
evaluate() {
  local began=$SECONDS status=0 log
  log=$(mktemp)
  timeout 240 "$kbnode" evaluate --problem "$1" --mode "$3" "examples/$1/$2" >"$log" 2>&1 || status=$?
  printf '%-24s %-16s %-12s exit %d after %3d s\n' "$1" "$2" "$3" "$status" $((SECONDS - began))
  if [ "$status" != "$4" ]; then
    bad=1
    tail -n 30 "$log"
  fi
  grep -E '^ *(benchmark|leaderboard).*(mean|best)|Passed|Not passed|profile_data' "$log" | head -n 4
  rm -f "$log"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
uname -r
if [ -n "$probe" ]; then
  "$probe" | head -c 1500 || bad=1
  echo
fi
evaluate vectoradd_triton submission.py test 0
evaluate vectoradd_triton submission.py leaderboard 0
evaluate vectoradd_triton cheat.py leaderboard 1
evaluate vectoradd_triton submission.py profile 0
evaluate identity_cuda submission.cu leaderboard 0
evaluate identity_cuda cheat.cu leaderboard 1
evaluate identity_cuda submission.cu profile 0
evaluate vectoradd_cuda_inline submission.py test 0
exit $bad
