#!/bin/bash
# Runs the scenarios: the arguments are go test's. A guest whose kernel dies in the
# emulator, or an emulator that crashes, says nothing about kbnode, so those tests, and
# no others, run once more. A kernel that kbnode brings down would die again.
set -euo pipefail
logs=${KBNODE_VM_LOGS:?}
died='Kernel panic - not syncing|rcu_preempt kthread starved|^QEMU ended: signal: (segmentation fault|aborted)'

rm -rf "$logs" # only tests that fail leave something here
if go test "$@"; then
  exit 0
fi
shopt -s nullglob
again=()
for dir in "$logs"/*/; do
  grep -qE "$died" "$dir"/{serial,qemu}.log || exit 1
  dir=$(basename "$dir")
  again+=("${dir%%-*}") # of a part, the whole
done
[ ${#again[@]} -gt 0 ] || exit 1
echo "The guest's kernel or its emulator died; once more: ${again[*]}"
args=()
while [ $# -gt 0 ]; do
  if [ "$1" = -run ]; then
    args+=(-run "^($(IFS='|' && echo "${again[*]}"))\$")
    shift
  else
    args+=("$1")
  fi
  shift
done
go test "${args[@]}"
