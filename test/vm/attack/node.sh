#!/bin/bash
# Prints what of the node no job may change: nothing of a slot's own is in it.
{
	echo "--- processes"
	for p in /proc/[0-9]*; do
		{ read -r group <"$p/cgroup" && read -r comm <"$p/comm"; } 2>/dev/null || continue
		case $group in
		0::/ | */kbnode-job-* | *buildkite.slice* | *guestd.service | *kbnode.service | *bkstub.service | *systemd-udevd.service*) continue ;;
		esac
		echo "$comm $group"
	done | sort -u
	echo "--- files"
	find /etc /root /usr /srv /opt /home /boot /tmp /var/tmp /dev /var/spool /var/lib /var/mail /run -xdev \
		\( -path /var/lib/docker -o -path /var/lib/containerd -o -path '/var/lib/buildkite-agent/gpu-*' -o -path /root/attack \
		-o -path '*/systemd-private-*' -o -path /run/docker -o -path /run/containerd -o -path /run/systemd -o -path /run/log -o -path /run/udev \
		-o -path '/run/kbnode/gpu*/agent' -o -path '/run/kbnode/gpu*/mounts' -o -path '/run/kbnode/gpu*/parked' -o -path '/run/kbnode/gpu*/mirrors' -o -path '/run/kbnode/gpu*/worked' -o -path '/run/kbnode/gpu*/registered' -o -path '/run/kbnode/gpu*/token' -o -path '/run/kbnode/gpu*/starts.json' -o -path '/run/kbnode/gpu*/clear' -o -path '/run/kbnode/gpu*/lock' -o -path '/var/lib/kbnode/mirrors/*' -o -path '/dev/char/*' -type l -o -path /run/credentials -o -path '/dev/pts' -o -path /var/lib/systemd -o -path /run/netns \) -prune -o \
		-printf '%p %m %u %l' \( -type f -size -1024k -printf ' %s %T@\n' -o -printf '\n' \) 2>/dev/null | grep -v '^/run/.*\.\(lock\|pid\) ' | sort
	find /dev/shm /dev/mqueue -mindepth 1 -printf '%p %u\n'
	echo "--- mounts"
	cut -d' ' -f1-3 /proc/mounts | grep -v ' /run/credentials' | sort
	echo "--- users"
	cksum /etc/passwd /etc/group /etc/shadow /etc/gshadow
	echo "--- docker"
	docker ps -aq --no-trunc
	docker network ls -q
	docker volume ls -q
	docker images -aq
	echo "--- kernel"
	ls /sys/class/net
	sysctl -n kernel.core_pattern kernel.unprivileged_bpf_disabled vm.overcommit_memory 2>/dev/null
	find /sys/fs/cgroup/buildkite.slice -type d | sort
	tail -n +2 -q /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg
	systemctl list-units --all --plain --no-legend --type=service,timer,mount,scope | awk '{print $1}' | grep -vE '^(user|session|docker-|run-|systemd-|kbnode-job-)' | sort
} 2>&1
