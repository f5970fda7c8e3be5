#!/bin/sh
# Builds the stand-in for libnvidia-ml.so.1 (see README.md).
# Usage: build.sh OUT.so [nosym|hang]
set -eu

if [ $# -lt 1 ]; then
	echo "usage: $0 OUT.so [nosym|hang]" >&2
	exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
case ${2:-} in
"") define= ;;
nosym) define=-DNOSYM ;;
hang) define=-DHANG ;;
*)
	echo "$0: no variant $2; there are nosym and hang" >&2
	exit 2
	;;
esac
# The header of the very module that the probe is compiled with.
nvml=$(cd "$here" && go list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml
# Only nvml* may be seen from outside: a stray symbol would hide a missing guard.
exec "${CC:-gcc}" -O1 -Wall -Wextra -Wno-deprecated-declarations -Wno-format-truncation -shared -fPIC \
	-DNVML_NO_UNVERSIONED_FUNC_DEFS $define -I"$nvml" \
	-Wl,-soname,libnvidia-ml.so.1 -o "$1" "$here/nvml.c"
