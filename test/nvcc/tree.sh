#!/bin/sh
# Makes $1, a Debian 13 with the CUDA compiler of nvidia-cuda-toolkit 12.4, a C++
# compiler that it accepts, and python3; from the package mirror that mmdebstrap
# knows. 1.1 GB to download, 0.5 GB on disk, a minute. Runs as root.
#
# The two CUDA packages are unpacked without what they depend on: the shared
# libraries of cuBLAS, cuFFT and so on are another 800 MB, and a program that does
# not ask for them needs none.
set -eu
tree=$1

mkdir -p "$tree.debs"
trap 'rm -rf "$tree.debs" "$tree.part"' EXIT
# shellcheck disable=SC2016
mmdebstrap --quiet --variant=essential --components=main,non-free \
	--include=g++-13,libthrust-dev,python3-minimal \
	--aptopt='APT::Install-Recommends "false"' \
	--aptopt='APT::Sandbox::User "root"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook="cd '$tree.debs'"' && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq download nvidia-cuda-toolkit nvidia-cuda-dev' \
	trixie "$tree.part"
for deb in "$tree.debs"/*.deb; do
	# Without 2 GB of static libraries, but with those that nvcc links by itself.
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$tree.part" \
		--exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='*/compute-sanitizer' \
		--exclude='./usr/lib/*/lib[!c]*.a' --exclude='./usr/lib/*/libcu[!d]*.a'
done
mv "$tree.part" "$tree"
