#!/bin/sh
# Installs the kbnode of a release to /usr/local/bin:
#
#   sudo sh install.sh [VERSION]       1.2.3; without it, the latest release
#
# The download must match the release's SHA256SUMS, or nothing is changed. This detects
# truncated and modified downloads, but not someone who can change both files on the
# server; for that, compare SHA256SUMS with a copy from elsewhere.
#
# Variables:
#   KBNODE_FROM   URL of the directory with SHA256SUMS and the archives, such as a mirror's
#   KBNODE_TO     directory to install kbnode into instead of /usr/local/bin
set -eu

releases=https://github.com/gpu-mode/kbnode/releases

say() { printf 'kbnode: %s\n' "$*" >&2; }

die() {
	say "$*"
	exit 1
}

# fetch URL FILE BYTES: downloads at most BYTES. With curl, an https URL never falls back to http.
fetch() {
	if command -v curl >/dev/null; then
		case $1 in
		https://*) set -- "$@" --proto =https --proto-redir =https ;;
		esac
		url=$1 file=$2 most=$3
		shift 3
		curl --fail --silent --show-error --location --max-redirs 5 --retry 3 --connect-timeout 20 \
			--max-time 900 --max-filesize "$most" "$@" --output "$file" -- "$url"
	elif command -v wget >/dev/null; then
		(ulimit -f "$(($3 / 512))"; wget -q -T 60 -t 3 -O "$2" -- "$1")
	else
		die "curl or wget is required; type apt install curl"
	fi || die "cannot fetch ${url:-$1}; nothing was changed"
}

# sum_of VERSION ARCH SUMS prints checksum and name of the archive of a machine.
sum_of() {
	awk -v version="$1" -v arch="$2" '
		$1 !~ /^[0-9a-f]+$/ || length($1) != 64 { next }
		{ sub(/^\*/, "", $2) }
		$2 !~ /^kbnode_[0-9A-Za-z.+~-]+_linux_[0-9a-z]+\.tar\.gz$/ { next }
		version != "" && $2 != "kbnode_" version "_linux_" arch ".tar.gz" { next }
		$2 ~ "_linux_" arch "\\.tar\\.gz$" { print $1, $2 }
	' "$3"
}

main() {
	version=${1:-}
	version=${version#v}
	case $version in
	-* | *[!0-9A-Za-z.+~-]*) die "'$version' is not a version; write one such as 1.2.3" ;;
	esac
	[ $# -le 1 ] || die "give one version, such as 1.2.3"
	to=${KBNODE_TO:-/usr/local/bin}
	if [ -n "${KBNODE_FROM:-}" ]; then
		from=${KBNODE_FROM%/}
	elif [ -n "$version" ]; then
		from=$releases/download/v$version
	else
		from=$releases/latest/download
	fi
	[ "$(uname -s)" = Linux ] || die "kbnode runs on Linux; this is $(uname -s)"
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) die "kbnode does not support $(uname -m), only x86_64 and aarch64" ;;
	esac
	again="${KBNODE_FROM:+KBNODE_FROM=$KBNODE_FROM }${KBNODE_TO:+KBNODE_TO=$KBNODE_TO }sh $0"
	[ -d "$to" ] || die "$to is not a directory; type mkdir -p $to"
	[ -w "$to" ] || die "cannot write to $to; type sudo $again${version:+ $version}, or set KBNODE_TO"
	umask 077
	work=$(mktemp -d)
	new=
	trap 'rm -rf "$work" ${new:+"$new"}' EXIT
	trap 'exit 1' HUP INT TERM

	fetch "$from/SHA256SUMS" "$work/SHA256SUMS" 1000000
	found=$(sum_of "$version" "$arch" "$work/SHA256SUMS")
	case $found in
	'') die "$from/SHA256SUMS lists no kbnode${version:+ $version} for $arch; nothing was changed" ;;
	*"
"*) die "$from/SHA256SUMS lists several versions; choose one: $again VERSION" ;;
	esac
	want=${found% *}
	archive=${found#* }
	fetch "$from/$archive" "$work/archive" 200000000
	has=$(sha256sum "$work/archive")
	has=${has%% *}
	[ "$has" = "$want" ] || die "$archive does not match SHA256SUMS (sha256 $has, not $want); nothing was changed"

	# Write a new file beside the old one and rename it, so a running kbnode is not disturbed.
	new=$(mktemp "$to/.kbnode.XXXXXX")
	tar -xzOf "$work/archive" kbnode >"$new" || die "$archive does not contain kbnode; nothing was changed"
	chmod 755 "$new"
	said=$("$new" version) || die "the kbnode in $archive does not run here; nothing was changed"
	mv -f "$new" "$to/kbnode"
	say "$to/kbnode is $said"
	case :$PATH: in
	*:"$to":*) ;;
	*) say "$to is not in PATH; type export PATH=\"$to:\$PATH\"" ;;
	esac
	if [ "$to" = /usr/local/bin ] && [ -e /usr/bin/kbnode ]; then
		say "a package also installed /usr/bin/kbnode; keep only one: /usr/local/bin comes first"
	fi
}

main "$@" # at the end: half a file does nothing
