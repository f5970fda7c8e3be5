#!/bin/bash
# Runs targets of the Makefile one after another: stages.sh TARGET …. +TARGET runs beside those after it, and its output
# follows theirs: the virtual machine keeps one core busy, of two. At the end, also of a failure, it prints how many
# minutes each took. A target that runs this script in turn adds its own stages.
set -euo pipefail
if [ -z "${STAGES:-}" ]; then
  STAGES=$(mktemp)
  export STAGES
  finish() {
    status=$?
    printf '\n%-16s %7s\n' stage minutes
    awk -v all=$SECONDS '{ printf "%-16s %7.1f\n", $1, $2 / 60 } END { printf "%-16s %7.1f\n", "all", all / 60 }' "$STAGES"
    rm -f "$STAGES"
    exit $status
  }
  trap finish EXIT
fi
beside=() # process, target and start of each
mkdir -p build/tests
end_beside() {
  set -- ${beside[@]+"${beside[@]}"}
  while [ $# -gt 0 ]; do
    local failed=0
    wait "$1" || failed=$?
    cat "build/tests/stage-$2.log"
    echo "$2 $((SECONDS - $3))" >>"$STAGES"
    [ $failed = 0 ] || status=$failed
    shift 3
  done
  beside=()
}
status=0
for stage in "$@"; do
  if [ "${stage#+}" != "$stage" ]; then
    stage=${stage#+}
    make "$stage" >"build/tests/stage-$stage.log" 2>&1 &
    beside+=("$!" "$stage" "$SECONDS")
    continue
  fi
  before=$(wc -l <"$STAGES") began=$SECONDS status=0
  make "$stage" || status=$?
  if [ "$(wc -l <"$STAGES")" = "$before" ]; then
    echo "$stage $((SECONDS - began))" >>"$STAGES"
  fi
  [ $status = 0 ] || break
done
end_beside
(exit "$status")
