#!/bin/sh
# Makes the guest's disk out of the trees of rootfs.sh: $1 holds rootfs.tar and
# job.tar, $2 this directory, $3 the result: disk.raw, vmlinuz and boot/, the
# files of the initramfs. AGENT and GUESTD name two static binaries, OWNER whom
# the result is given to. Runs as root and mounts nothing.
set -eu
trees=$1 src=$2 out=$3
root=$out/root

in_guest() { chroot "$root" "$@"; }

mkdir "$root"
tar -xf "$trees/rootfs.tar" -C "$root" --numeric-owner

# The rig's own files. A checkout or an archive may have lost their modes.
cp -R --no-preserve=ownership "$src/root/." "$root/"
find "$src/root" -type d -printf '%P\n' | while read -r d; do chmod 0755 "$root/$d"; done
find "$src/root" -type f -printf '%P\n' | while read -r f; do chmod 0644 "$root/$f"; done
chmod 0755 "$root"/usr/local/sbin/*
install -m 0755 "$GUESTD" "$root/usr/local/sbin/guestd"
install -m 0755 "$AGENT" "$root/usr/bin/buildkite-agent"

echo b200-node >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 b200-node\n' >"$root/etc/hosts"
printf '/dev/vda / ext4 noatime,noinit_itable 0 0\n' >"$root/etc/fstab"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
in_guest passwd -q -d root

in_guest systemctl -q enable guestd.service sim-gpus.service docker.service cron.service bkstub.service
in_guest systemctl -q mask apt-daily.timer apt-daily-upgrade.timer fstrim.timer \
	logrotate.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer \
	systemd-tmpfiles-clean.timer getty@tty1.service serial-getty@ttyS0.service \
	systemd-networkd-wait-online.service

# The repositories that the agent clones; /etc/gitconfig leads there.
repository() { # NAME TREE TAG
	mkdir -p "$root/srv/git" "$root/tmp/$1"
	cp -R --no-preserve=ownership "$2/." "$root/tmp/$1/"
	if [ -d "$root/tmp/$1/hooks" ]; then chmod 0755 "$root/tmp/$1"/hooks/*; fi
	# shellcheck disable=SC2016
	in_guest env HOME=/root GIT_AUTHOR_NAME=rig GIT_AUTHOR_EMAIL=rig@localhost \
		GIT_COMMITTER_NAME=rig GIT_COMMITTER_EMAIL=rig@localhost \
		GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z \
		sh -ec 'cd "/tmp/$1"; git init -q -b main; git add .; git commit -q -m "first"
			git tag "$2"; git clone -q --bare . "/srv/git/$1.git"; rm -r "/tmp/$1"' sh "$1" "$3"
}
repository docker-buildkite-plugin "$src/plugin" v5.11.0
repository kernelbot "$src/kernelbot" v1

# Images are imported by the first boot.
mkdir -p "$root/srv/images"
job=$out/job
mkdir "$job"
tar -xf "$trees/job.tar" -C "$job" --numeric-owner
rm -rf "$job/usr/lib/python3.13/test" "$job"/usr/share/python3/*
chroot "$job" python3 -m compileall -q /usr/lib/python3.13 >/dev/null
mkdir -p "$job/workdir"
tar -cf "$root/srv/images/kernelbot-test.tar" -C "$job" .
mkdir -p "$out/box/bin"
cp "$root/usr/bin/busybox" "$out/box/bin/"
chroot "$out/box" /bin/busybox --install -s /bin
tar -cf "$root/srv/images/busybox.tar" -C "$out/box" .

# Kernel and initramfs live outside the disk.
kernel=$(basename "$root"/boot/vmlinuz-*)
kernel=${kernel#vmlinuz-}
cp "$root/boot/vmlinuz-$kernel" "$out/vmlinuz"
mkdir "$out/boot"
cp "$root/usr/bin/busybox" "$out/boot/busybox"
cp "$src/initramfs/init" "$out/boot/init"
for module in $(in_guest modprobe -S "$kernel" --show-depends virtio_blk | sed -n 's/^insmod //p'); do
	xz -dc "$root$module" >"$out/boot/$(basename "$module" .xz)"
done
rm -rf "${root:?}"/boot/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*

mkfs.ext4 -q -F -L root -i 65536 \
	-E lazy_itable_init=1,root_owner=0:0 -d "$root" "$out/disk.raw" 64G
rm -rf "$root" "$job" "$out/box"
chown -R "$OWNER" "$out"
