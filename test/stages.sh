#!/bin/bash
# Runs targets of the Makefile one after another: stages.sh TARGET …. At the end, also of a failure, it
# prints how many minutes each took. A target that runs this script in turn adds its own stages.
set -euo pipefail
if [ -z "${STAGES:-}" ]; then
  STAGES=$(mktemp)
  export STAGES
  finish() {
    status=$?
    printf '\n%-16s %7s\n' stage minutes
    awk '{ printf "%-16s %7.1f\n", $1, $2 / 60; all += $2 } END { printf "%-16s %7.1f\n", "all", all / 60 }' "$STAGES"
    rm -f "$STAGES"
    exit $status
  }
  trap finish EXIT
fi
for stage in "$@"; do
  before=$(wc -l <"$STAGES") began=$SECONDS status=0
  make "$stage" || status=$?
  if [ "$(wc -l <"$STAGES")" = "$before" ]; then
    echo "$stage $((SECONDS - began))" >>"$STAGES"
  fi
  [ $status = 0 ] || exit $status
done
