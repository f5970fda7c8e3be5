#!/bin/bash
# What a command on the host tries against the node and slot $2, as slot $1; a
# line ":: yes WHAT" or ":: no WHAT" for each.
set -u
other=gpu$2
try() { # WHAT COMMAND…
	local what=$1 says
	shift
	if says=$(timeout 10 "$@" 2>&1); then
		echo ":: yes $what: $(head -c 200 <<<"$says" | tr '\n' ' ')"
	else
		echo ":: no $what"
	fi
}
sh() { local what=$1; shift; try "$what" bash -c "$*"; }

for file in /etc/shadow /etc/buildkite-agent/token "/run/credentials/buildkite-agent-gpu$1.service/token" \
	/root/token /dev/vda /dev/mem /dev/kmem /proc/kcore /var/lib/docker/image "/var/lib/buildkite-agent/gpu-$2"; do
	sh "read $file" "head -c1 $file || ls $file/"
done
for file in /etc/buildkite-agent/hooks/environment /etc/buildkite-agent/hooks/pre-command "/etc/buildkite-agent/agent-$1/buildkite-agent.cfg" \
	"/etc/buildkite-agent/agent-$1/environment" /etc/kbnode/config.yaml "/etc/kbnode/slots/gpu$1.json" \
	/etc/systemd/system/evil.service /usr/local/bin/kbnode /usr/local/libexec/kbnode/buildkite-agent /usr/local/libexec/kbnode/kbnode-runner /var/lib/kbnode/slots.json /srv/git/evil \
	"/run/kbnode/gpu$1/evil" "/run/kbnode/$other/agent/evil" /run/evil /etc/cron.d/evil /var/spool/cron/crontabs/root /root/evil /home/evil /usr/evil \
	"/var/lib/buildkite-agent/gpu-$2/evil" /var/lib/evil "/sys/fs/cgroup/buildkite.slice/buildkite-gpu$1.slice/memory.max" \
	"/sys/fs/cgroup/buildkite.slice/buildkite-$other.slice/cgroup.procs" /sys/fs/cgroup/cgroup.procs \
	/proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/drop_caches /sys/bus/pci/rescan /dev/vda; do
	sh "write $file" "echo \$\$ >>$file"
done
sh "replace the socket" "rm -f /run/kbnode/gpu$1/docker.sock && test ! -e /run/kbnode/gpu$1/docker.sock"
sh "edit the hooks through a mount" "unshare -Urm bash -c 'mount --bind /tmp /etc/buildkite-agent/hooks' && test -z \"\$(ls /etc/buildkite-agent/hooks)\""

for socket in "/run/kbnode/$other/docker.sock" /run/docker.sock /run/containerd/containerd.sock /run/systemd/private; do
	try "connect to $socket" curl -sS --max-time 5 --unix-socket "$socket" http://docker/_ping
done
sh "list the job API of the neighbour" "ls /run/kbnode/$other/agent"
sh "connect to a shim" "grep -o '@/containerd-shim.*' /proc/net/unix"
sh "neighbour's containers" "DOCKER_HOST=unix:///run/kbnode/gpu$1/docker.sock docker inspect neighbour || docker stop kbnode-$other-neighbour"

job=$(pgrep -u "kbnode-$other" -f neighbour.sh | head -n 1)
agent=$(systemctl show -P MainPID "buildkite-agent-$other")
mine=$(systemctl show -P MainPID "buildkite-agent-gpu$1")
inner=$(pgrep -f 'while \[ ! -e /w/stop' -u root | tail -n 1)
[[ $job && $agent && $inner ]] || echo ":: yes the processes of the neighbour are not found: $job $agent $inner"
for pid in "$job" "$agent" "$inner" 1; do
	who=$(cat "/proc/$pid/comm")
	for signal in KILL STOP HUP 0; do try "signal $signal to $who" kill -s "$signal" "$pid"; done
	sh "memory of $who" "head -c1 /proc/$pid/mem"
	sh "environment of $who" "head -c1 /proc/$pid/environ"
	sh "files of $who" "ls /proc/$pid/root/ /proc/$pid/cwd/ /proc/$pid/fd/"
	sh "trace $who" "timeout 1 strace -qq -o /dev/null -p $pid; test \$? = 124"
	sh "limits of $who" "prlimit --pid $pid --nofile=1:1"
	sh "priority of $who" "renice -n 19 -p $pid"
	sh "CPUs of $who" "taskset -p 1 $pid"
	sh "OOM score of $who" "echo 1000 >/proc/$pid/oom_score_adj"
done
for file in environ mem; do sh "$file of the own agent" "head -c1 /proc/$mine/$file"; done

# add_key(2) to the keyring of the user, which outlives the job.
sh "leave a key" "perl -e 'my @key = qw(user evil left); exit(syscall(248, @key, 4, -4) < 0)'"
sh "CPUs of others" "taskset -c 0-19 grep Cpus_allowed_list /proc/self/status | grep -v '${KERNELBOT_CPUSET//-/.}' | grep list"
sh "leave the slice" "systemd-run --wait --pipe id || systemd-run --user --scope id"
sh "stop the neighbour" "systemctl --no-ask-password stop buildkite-agent-$other"
sh "linger" "loginctl --no-ask-password enable-linger"
sh "crontab" "echo '* * * * * id' | crontab -"
sh "sudo" "sudo -n id || su -c id </dev/null"
sh "docker group" "sg docker id | grep '(docker)'"
sh "link to the token" "ln /etc/buildkite-agent/token hard"
sh "link to shadow" "ln /etc/shadow hard"
sh "make a device" "mknod node b 254 0 || mknod node c 195 7"
sh "setuid file" "cp /bin/bash bash-setuid && chmod 4755 bash-setuid"
sh "mount" "mount -t tmpfs none /tmp"
sh "module" "insmod /lib/modules/x.ko"
sh "clock" "date -s 2001-01-01"
sh "kernel log" "dmesg"
sh "real time" "chrt -f 1 true"
sh "trace the kernel" "head -c1 /sys/kernel/debug/tracing/trace"
for k in 0 1 2 3 4 5 6 7; do
	[[ $k == "$1" ]] || sh "GPU $k" "(exec 3<>/dev/nvidia$k) 2>&1 | grep 'No such device or address'"
done
sh "token in the environment" "env | grep bktest-agent-token"
sh "core dump" "ulimit -c unlimited && sleep 100 & kill -SEGV \$!; wait; compgen -G 'core*'"
echo ":: done"
