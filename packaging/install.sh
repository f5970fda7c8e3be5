#!/bin/sh
# Installs the kbnode of a release to /usr/local/bin:
#
#   sudo sh install.sh [VERSION]       1.2.3; without it, the latest release
#
# What is fetched must be what the release's SHA256SUMS says, or nothing is changed.
# That finds what was cut off or changed on the way. Whoever can change both files on
# the server is not found; for that, compare SHA256SUMS with one from elsewhere.
#
# Variables:
#   KBNODE_FROM   directory of SHA256SUMS and the archives, as URL, such as a mirror's
#   KBNODE_TO     where kbnode is put instead of /usr/local/bin
set -eu

releases=https://github.com/gpu-mode/kbnode/releases

say() { printf 'kbnode: %s\n' "$*" >&2; }

die() {
	say "$*"
	exit 1
}

# fetch URL FILE BYTES: at most so many. Where the URL says https, it stays at that.
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
		wget -q -T 60 -t 3 -O "$2" -- "$1"
	else
		die "curl or wget is needed; type apt install curl"
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
	-* | *[!0-9A-Za-z.+~-]*) die "'$version' is no version; write one such as 1.2.3" ;;
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
	*) die "there is no kbnode for $(uname -m), only for x86_64 and aarch64" ;;
	esac
	{ [ -d "$to" ] && [ -w "$to" ]; } || die "cannot write to $to; type sudo sh $0 $version"
	umask 077
	work=$(mktemp -d)
	new=
	trap 'rm -rf "$work" ${new:+"$new"}' EXIT
	trap 'exit 1' HUP INT TERM

	fetch "$from/SHA256SUMS" "$work/SHA256SUMS" 1000000
	found=$(sum_of "$version" "$arch" "$work/SHA256SUMS")
	case $found in
	'') die "$from/SHA256SUMS names no kbnode${version:+ $version} for $arch; nothing was changed" ;;
	*"
"*) die "$from/SHA256SUMS names several versions; say which: sh $0 VERSION" ;;
	esac
	want=${found% *}
	archive=${found#* }
	fetch "$from/$archive" "$work/archive" 200000000
	has=$(sha256sum "$work/archive")
	has=${has%% *}
	[ "$has" = "$want" ] || die "$archive is not what SHA256SUMS says (sha256 $has, not $want); nothing was changed"

	# Beside its place, and then into it at once: what runs there goes on undisturbed.
	new=$(mktemp "$to/.kbnode.XXXXXX")
	tar -xzOf "$work/archive" kbnode >"$new" || die "$archive has no kbnode in it; nothing was changed"
	chmod 755 "$new"
	said=$("$new" version) || die "$archive has a kbnode that does not run here; nothing was changed"
	mv -f "$new" "$to/kbnode"
	say "$to/kbnode is $said"
	if [ "$to" = /usr/local/bin ] && [ -e /usr/bin/kbnode ]; then
		say "a package has /usr/bin/kbnode too; keep one of them: the one in /usr/local/bin comes first"
	fi
}

main "$@" # at the end: half a file does nothing
