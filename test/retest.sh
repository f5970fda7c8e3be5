#!/bin/bash
# Runs tests: retest.sh NAME PACKAGES [FLAG …], with the flags of go test. A test that fails runs once
# more by itself, a scenario in a fresh machine; a data race, or more than five failures, is no accident.
# A test that then passes is printed as UNSTABLE. Each scenario that passed gets a row in last-green.txt in kbnode's
# cache, which counts how often it was unstable. All output of both runs stays in build/tests/NAME.json.
set -euo pipefail
name=$1 packages=$2
shift 2
table=${XDG_CACHE_HOME:-$HOME/.cache}/kbnode/last-green.txt
results=build/tests/$name.json rerun=build/tests/$name.rerun
mkdir -p build/tests "${table%/*}"
rm -f "$results" "$rerun"
status=0
"${GOTESTSUM:?}" --format "${TEST_FORMAT:-pkgname-and-test-fails}" --hide-summary skipped --jsonfile "$results" \
  --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report "$rerun" \
  --packages "$packages" -- -timeout 30m "$@" || status=$?

if [ $status = 0 ] && ! grep -q '"Action":"run"' "$results"; then
  echo "no test ran; test/vm/scenarios has the names of the scenarios" >&2
  status=1
fi
if [ -s "$rerun" ]; then
  sed -nE 's/^(.*): 2 runs, 1 failures$/UNSTABLE \1/p' "$rerun"
fi
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD || commit+=+ # what ran is not quite that commit
# A part of a scenario says nothing of the whole, which go test calls passed.
if [ -s "$results" ] && [[ "$*" != *"-run "*/* ]]; then
  go run ./test/vm/kbvm record "$table" test/vm/scenarios "$results" "$commit" "$(date -u +%F)"
fi
exit "$status"
