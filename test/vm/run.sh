#!/bin/bash
# Runs the scenarios: the arguments are go test's. A guest whose kernel dies in the
# emulator, or an emulator that crashes, says nothing about kbnode, so those tests, and
# no others, run once more; their first logs stay, in NAME.first. A kernel that kbnode
# brings down would die again. What was green goes into the table of test/vm/README.md.
set -euo pipefail
logs=${KBNODE_VM_LOGS:?}
died='Kernel panic - not syncing|rcu_preempt kthread starved|^QEMU ended: signal: (segmentation fault|aborted)'
out=$(mktemp)
trap 'rm -f "$out"' EXIT
page=$(dirname "$0")/README.md

args=("$@") run=whole repeated=()
for ((i = 0; i + 1 < $#; i++)); do
  if [ "${args[i]}" = -run ] && [[ ${args[i + 1]} == */* ]]; then run=parts; fi
done

# record NAME …: the tests that were repeated.
record() {
  local commit
  commit=$(git rev-parse --short HEAD)
  git diff --quiet HEAD -- . ":!$page" || commit+=+ # what ran is not quite that commit
  go run ./test/vm/kbvm record "$page" "$out" "$commit" "$(date -u +%F)" "$run" "$@"
}

rm -rf "$logs" # only tests that fail leave something here
if go test "$@" | tee "$out"; then
  record
  exit 0
fi
shopt -s nullglob
for dir in "$logs"/*/; do
  grep -qE "$died" "$dir"/{serial,qemu}.log || { record; exit 1; }
  name=$(basename "$dir")
  repeated+=("${name%%-*}") # of a part, the whole
done
[ ${#repeated[@]} -gt 0 ] || { record; exit 1; }
for dir in "$logs"/*/; do mv "$dir" "${dir%/}.first"; done
grep -hoE "($died).*" "$logs"/*.first/{serial,qemu}.log | sort | uniq -c || true # says why, and must not end the run
echo "The guest's kernel or its emulator died; once more: ${repeated[*]} (${#repeated[@]} repeated; first logs in $logs/*.first)"
for ((i = 0; i + 1 < $#; i++)); do
  if [ "${args[i]}" = -run ]; then args[i + 1]="^($(IFS='|' && echo "${repeated[*]}"))\$"; fi
done
status=0
go test "${args[@]}" | tee -a "$out" || status=$?
record "${repeated[@]}"
exit "$status"
