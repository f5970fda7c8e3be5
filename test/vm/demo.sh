#!/bin/bash
# make demo: the path of one job, from the sources to its result. kbvm demo prints the steps from the third.
set -euo pipefail
log=build/demo.log
mkdir -p build
: >"$log"

step() { # TITLE COMMAND …
  local title=$1 began=$SECONDS
  shift
  echo "$title"
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 5 "$log" | sed 's/^/      /' >&2
    echo "demo: this step was not successful; $log says why. Run make demo again to repeat it." >&2
    exit 1
  fi
  echo "      $((SECONDS - began)) s"
}

# Debian is unpacked on one core while the other one compiles.
build() {
  "$MAKE" --no-print-directory vm-deps && CGO_ENABLED=0 go build -trimpath -o build/kbvm ./test/vm/kbvm || return
  local trees status=0
  build/kbvm trees &
  trees=$!
  "$MAKE" --no-print-directory vm-ready || status=1
  wait "$trees" || status=1
  return $status
}

cat <<'END'
kbnode turns a server into Buildkite agents, one per GPU. Here the server is emulated: nothing of this
computer changes, except for packages that make installs and files in ~/.cache/kbnode.

END
step "[1/6] build kbnode, and fetch Debian for the server (the first time about 2 min)" build
step "[2/6] make the server's disk, and boot it (the first time about 2 min)" build/kbvm image
exec build/kbvm demo
