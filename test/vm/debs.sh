#!/bin/sh
# Fetches the Debian packages that the guest lacks for what is named, into the tar
# archive $1. Standard input is an archive of the guest's /etc/apt and
# /var/lib/dpkg/status, by which apt decides what those are and whom to believe.
set -eu
out=$1
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"
tar -x -C "$root"
# Another apt may be running, and whoever runs this may not be root.
apt() {
	apt-get -qq -o Dir="$root" -o Dir::State::status="$root/var/lib/dpkg/status" \
		-o Dir::Etc::trustedparts="$root/etc/apt/trusted.gpg.d" -o APT::Sandbox::User= \
		-o APT::Architecture=amd64 -o APT::Architectures=amd64 -o Debug::NoLocking=1 "$@"
}
apt update
apt install -y --no-install-recommends --download-only "$@"
tar -cf "$out" -C "$root/var/cache/apt/archives" --exclude='./*/*' --exclude=./partial --exclude=./lock .
