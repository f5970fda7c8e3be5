#!/usr/bin/env bash
# Builds the packages of HEAD twice, in two places, and checks the results: identical
# bytes, no lintian errors, rpm's view of the .rpm, and the content.
#
#   packaging/check.sh GORELEASER
set -euo pipefail
cd "$(dirname "$0")/.."
goreleaser=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

wrong() {
	echo "packages-check: $*" >&2
	bad=1
}

[ -z "$(git status --porcelain)" ] || echo "packages-check: uncommitted changes are not checked" >&2
head=$(git rev-parse HEAD)
for copy in one/kbnode two/elsewhere/kbnode; do
	git clone -q --no-hardlinks . "$work/$copy"
	git -C "$work/$copy" reset -q --hard "$head" # someone may commit while the first is built
	# The second one compiles everything again, to show what depends on place or time.
	[ "$copy" = one/kbnode ] || export GOCACHE=$work/cache
	make -s -C "$work/$copy" snapshot GORELEASER="$goreleaser" >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		exit 1
	}
done
one=$work/one/kbnode/dist two=$work/two/elsewhere/kbnode/dist
if diff "$one/SHA256SUMS" "$two/SHA256SUMS"; then
	echo "two builds have the same bytes:"
	cat "$one/SHA256SUMS"
else
	wrong "two builds differ"
fi
cd "$one"
sha256sum --quiet -c SHA256SUMS || wrong "SHA256SUMS does not match the files"
for kind in linux_amd64.tar.gz linux_arm64.tar.gz _amd64.deb _arm64.deb x86_64.rpm aarch64.rpm linux_amd64.cdx.json linux_arm64.cdx.json; do
	[ "$(grep -c "$kind\$" SHA256SUMS)" = 1 ] || wrong "SHA256SUMS does not list exactly one *$kind"
done

for deb in *.deb; do
	lintian --fail-on error --tag-display-limit 0 "$deb" || wrong "lintian has errors about $deb"
	dpkg-deb -x "$deb" "$work/${deb##*_}"
	dpkg-deb -e "$deb" "$work/${deb##*_}.control"
	if dpkg-deb -c "$deb" | grep -v '^[d-]rw[x-]r-[x-]r-[x-] root/root '; then
		wrong "$deb has files that someone other than root owns or can write"
	fi
done
[ "$(dpkg-deb -f ./*_amd64.deb Version)" = "$(gunzip -c "$work/amd64.deb/usr/share/doc/kbnode/changelog.gz" | sed -n '1s/.*(\(.*\)).*/\1/p')" ] ||
	wrong "version and changelog of the .deb differ"
shellcheck "$work"/amd64.deb.control/{postinst,prerm,postrm} || wrong "shellcheck reports problems"

for arch in amd64 arm64; do
	root=$work/$arch.deb
	probe=$root/usr/libexec/kbnode/kbnode-nvml
	gunzip -c "$work/one/kbnode/internal/machine/detect/probe/bin/$arch/kbnode-nvml.gz" | cmp - "$probe" ||
		wrong "the NVML probe for $arch is not the one embedded in kbnode"
	grep -qaF "$(cut -c1-64 "$work/one/kbnode/internal/evaluate/runner/program/bin/$arch/kbnode-runner.sha256")" "$root/usr/bin/kbnode" ||
		wrong "kbnode for $arch does not embed the program for jobs"
	needs=$({ objdump -T "$probe" 2>/dev/null || readelf -W --dyn-syms "$probe"; } | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
	[ "$(printf '%s\nGLIBC_2.34\n' "$needs" | sort -V | tail -1)" = GLIBC_2.34 ] || wrong "the NVML probe for $arch needs $needs, and the packages say 2.34"
	mkdir "$work/$arch.tar"
	tar -xzf kbnode_*_linux_$arch.tar.gz -C "$work/$arch.tar"
	cmp "$work/$arch.tar/kbnode" "$root/usr/bin/kbnode" || wrong "archive and .deb for $arch differ"
	for schema in "$work/$arch.tar/config.schema.json" "$root/usr/share/kbnode/config.schema.json"; do
		cmp ../packaging/config.schema.json "$schema" || wrong "$schema is not the schema in packaging"
	done
	for schemas in "$work/$arch.tar/schemas" "$root/usr/share/kbnode/schemas"; do
		diff -r ../packaging/schemas "$schemas" || wrong "$schemas are not the schemas in packaging"
	done
	for part in ansible cloud-init; do
		diff -r "../packaging/$part" "$root/usr/share/kbnode/$part" || wrong "$part in the .deb for $arch is not the one in packaging"
	done
	diff <(cd ../docs && ls ./*.md) <(cd "$root/usr/share/doc/kbnode" && ls ./*.md) || wrong "the .deb for $arch lacks pages"
	for examples in "$work/$arch.tar/examples" "$root/usr/share/doc/kbnode/examples"; do
		diff <(cd ../examples && find . -type f ! -name '*.go' ! -path './testdata/*' ! -path './machines/*' ! -path '*/__pycache__/*' | sort | xargs sha256sum) \
			<(cd "$examples" && find . -type f ! -name config.yaml | sort | xargs sha256sum) || wrong "$examples are not the examples"
	done
	unit=$root/usr/lib/systemd/system/kbnode-install.service
	cmp ../packaging/kbnode-install.service "$unit" || wrong "the unit for $arch is not the one in packaging"
done
"$work/amd64.deb/usr/bin/kbnode" version --json | python3 -c '
import json, sys
v = json.load(sys.stdin)
assert len(v["commit"]) == 40 and v["date"].endswith("Z") and not v["date"].startswith("0001") and v["version"][0].isdigit(), v
print(v)' || wrong "kbnode does not report its version, commit and date"

for rpm in *.rpm; do
	case $rpm in *x86_64*) arch=amd64 ;; *) arch=arm64 ;; esac
	rpm -K --nosignature "$rpm" || wrong "rpm rejects $rpm"
	# The same files as in the .deb, except those specific to Debian or rpm.
	diff <(rpm -qlp "$rpm" 2>/dev/null | grep -v '/usr/share/licenses/' | sed 's#zsh/site-functions#zsh/vendor-completions#' | sort) \
		<(cd "$work/$arch.deb" && find . -type f | sed 's#^\.##' | grep -Ev '/copyright$|/lintian/|/changelog.gz$' | sort) ||
		wrong "$rpm and the .deb have different files"
	if rpm -qp --qf '[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]' "$rpm" | grep -v '^-rw[x-]r-[x-]r-[x-] root root '; then
		wrong "$rpm has files that someone other than root owns or can write"
	fi
	scripts=$(rpm -qp --scripts "$rpm" 2>/dev/null)
	case $scripts in *postinstall*preuninstall*postuninstall*) ;; *) wrong "$rpm lacks scripts: $scripts" ;; esac
	mkdir "$work/$arch.rpm"
	# It exits with 1 even on success; cmp below shows what is missing.
	(cd "$work/$arch.rpm" && { rpm2cpio "$one/$rpm" || :; } | cpio -idm --quiet --no-absolute-filenames 2>/dev/null)
	cmp "$work/$arch.rpm/usr/bin/kbnode" "$work/$arch.deb/usr/bin/kbnode" || wrong "$rpm and the .deb have different kbnode binaries"
done

# What dpkg and rpm do with them, each in its own directory, with and without a unit as
# install writes it.
unit=etc/systemd/system/kbnode.service
root=$work/dpkg
mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root/etc/systemd/system" "$root/etc/kbnode" "$root/var/lib/kbnode"
touch "$root"/var/lib/dpkg/{status,available} "$root/etc/kbnode/config.yaml"
packs() { dpkg --root="$root" --log=/dev/null --force-script-chrootless --force-depends --force-not-root "$@" 2>&1; }
is() { dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Status}' kbnode; }
packs -i ./*_amd64.deb
echo 'ExecStart=/usr/bin/kbnode daemon' >"$root/$unit"
packs -i ./*_amd64.deb || wrong "dpkg does not upgrade on a node"
for how in -r -P; do
	if packs $how kbnode; then wrong "dpkg $how removes the package from a node"; fi
	[ "$(is)" = installed ] || wrong "a refused removal leaves the package as: $(is)"
done
rm "$root/$unit"
packs -r kbnode || wrong "dpkg does not remove it"
[ -e "$root/etc/kbnode/config.yaml" ] || wrong "a removal deletes the configuration"
packs -P kbnode || wrong "dpkg does not purge it"
left=$(find "$root" -path "$root/var/lib/dpkg" -prune -o ! -type d -print -o -name 'kbnode*' -print)
[ -z "$left" ] || wrong "a purge leaves $left"

if [ "$(id -u)" != 0 ]; then
	echo "packages-check: not root, so rpm's scripts did not run" >&2
	exit $bad
fi
root=$work/rpm
mkdir -p "$root/etc/systemd/system" "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
for program in /bin/sh /bin/grep /bin/cat; do
	for file in "$program" $(ldd "$program" | grep -o '/[^ ]*'); do
		[ -e "$root$file" ] || install -D "$(readlink -f "$file")" "$root$file"
	done
done
rpms() { rpm --root="$root" --nodeps "$@" 2>&1; }
rpms -i --ignorearch ./*x86_64.rpm
echo 'ExecStart=/usr/bin/kbnode daemon' >"$root/$unit"
rpms -U --force --ignorearch ./*x86_64.rpm || wrong "rpm does not upgrade on a node"
if rpms -e kbnode; then wrong "rpm removes the package from a node"; fi
{ rpm --root="$root" -q kbnode >/dev/null && [ -x "$root/usr/bin/kbnode" ]; } || wrong "a refused removal deleted something"
rm "$root/$unit"
rpms -e kbnode || wrong "rpm does not remove it"
left=$(find "$root" -name '*kbnode*' -not -path '*/rpm/*')
[ -z "$left" ] || wrong "rpm leaves $left"
exit $bad
