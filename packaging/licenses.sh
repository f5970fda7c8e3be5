#!/usr/bin/env bash
# Prints the licenses of everything compiled into a release, as they require.
set -euo pipefail
cd "$(dirname "$0")/.."

show() { # NAME FILE...
	printf '\n==== %s: %s\n\n' "$1" "${2##*/}"
	cat "$2"
}

echo "kbnode contains the following, under their licenses."
show "Go and its standard library, $(go env GOVERSION)" "$(go env GOROOT)/LICENSE"
for arch in amd64 arm64; do
	GOOS=linux GOARCH=$arch CGO_ENABLED=1 go list -deps \
		-f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/kbnode ./cmd/kbnode-nvml
done | sort -u | while read -r path version dir; do
	found=
	for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/NOTICE*; do
		case $file in
		*'*') continue ;;
		esac
		[ -f "$file" ] || continue
		found=1
		show "$path $version" "$file"
	done
	if [ -z "$found" ]; then
		echo "licenses: no license found in $path $version" >&2
		exit 1
	fi
done
