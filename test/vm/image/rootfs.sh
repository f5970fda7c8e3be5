#!/bin/sh
# Makes the two Debian trees of the rig, from the package mirror that
# mmdebstrap knows: $1/rootfs.tar, the guest, and $1/job.tar, the small root of
# the job image, given to OWNER. Runs as root.
set -eu
out=$1
suite=trixie

lean() {
	mmdebstrap --quiet \
		--aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/info/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		"$@"
}

packages=systemd,systemd-sysv,dbus,udev,kmod,linux-image-cloud-amd64
packages=$packages,docker.io,docker-cli,containerd,runc,tini,iptables
packages=$packages,git,python3-minimal,cron,sudo,curl,jq,file,less
packages=$packages,procps,psmisc,iproute2,numactl,pciutils,strace,acl
packages=$packages,libcap2-bin,busybox-static,ca-certificates,e2fsprogs,nftables

lean --variant=minbase --include="$packages" "$suite" "$out/rootfs.tar"

# Unpacked but not configured is enough for a container.
lean --variant=extract \
	--include=base-files,bash,coreutils,dash,findutils,grep,sed,python3 \
	--dpkgopt='path-exclude=/usr/share/zoneinfo/*' \
	--dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
	"$suite" "$out/job.tar"
chown -R "$OWNER" "$out"
