#!/bin/sh
# Makes what an image is built of where there is no network: $1/base.tar, a root
# as debian:13-slim has it, and $1/debs.tar, an archive with the other packages
# and all that they need, which the base takes for its mirror. Given to OWNER.
# Runs as root.
set -eu
out=$1
mirror=$2 # the address at which the archive will be served
shift 2
mkdir "$out/debs"

# Hooks get the root's directory as $1.
export WANTED="$*" DEBS="$out/debs" MIRROR="$mirror"
# shellcheck disable=SC2016 # the hooks' own variables
mmdebstrap --quiet --variant=minbase \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook='APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get install --yes --download-only --quiet=2 $WANTED >/dev/null' \
	--customize-hook='find "$1/var/cache/apt/archives" -name "*.deb" -exec mv -t "$DEBS" {} +' \
	--customize-hook='echo "deb [trusted=yes] $MIRROR ./" >"$1/etc/apt/sources.list"' \
	trixie "$out/base.tar"
(cd "$out/debs" && dpkg-scanpackages --multiversion . >Packages 2>/dev/null && gzip -9n Packages)
tar -C "$out/debs" -cf "$out/debs.tar" .
rm -r "$out/debs"
chown -R "$OWNER" "$out"
