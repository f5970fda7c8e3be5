#!/bin/bash
# Runs the hostile jobs of one slot, one after the other: lane.sh SLOT. For a job NAME there is NAME.yml with
# its step, and NAME.flags for bkstub; NAME.during is what root does meanwhile. What came of it: NAME.build,
# NAME.log, NAME.code, NAME.said (by NAME.during), and NAME.left, what is left of the slot's after a while.
set -u
slot=$1
user=kbnode-gpu$slot
unit=buildkite-agent-gpu$slot
slice=/sys/fs/cgroup/buildkite.slice/buildkite-gpu$slot.slice
work=/var/lib/buildkite-agent/gpu-$slot
cd "/root/attack/$slot" || exit

# poll COMMAND…: until it succeeds, for three minutes.
poll() {
	for ((i = 0; i < 360; i++)); do
		"$@" && return
		sleep 0.5
	done
	echo "waited in vain: $*"
	return 1
}

main_pid() { systemctl show -P MainPID "$unit"; }
is_ready() { find "$work/builds" -name READY | grep -q .; }
# The words that follow are what a NAME.during says.
ready() { poll is_ready; }
restarted() { local now; now=$(main_pid) && [[ $now != 0 && $now != "$agent" ]]; }
container() { find "$slice" -name 'docker-*.scope' | sed 's/.*docker-\(.*\)\.scope/\1/' | head -n 1; }

# left prints what a job of this slot left behind.
left() {
	local main p
	main=$(main_pid)
	find "$slice" -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r p; do
		[[ $p == "$main" ]] || echo "process $(tr '\0' ' ' <"/proc/$p/cmdline" | head -c 80)"
	done
	pgrep -u "$user" -a | while read -r p words; do
		[[ $p == "$main" ]] || echo "process of the user: ${words:0:80}"
	done
	curl -s --unix-socket /run/docker.sock "http://docker/containers/json?all=1&filters=%7B%22label%22%3A%5B%22kbnode.slot%3D$slot%22%5D%7D" | grep -o '"Names":[^]]*'
	find "/run/kbnode/gpu$slot/mounts" -mindepth 1 -printf 'held mount %f\n' 2>/dev/null
	find "$work" -mindepth 1 ! -user "$user" ! -path "$work/builds" ! -path "$work/builds/kbnode-*" ! -path "*/lost+found*" 2>/dev/null | head -n 5 | sed 's/^/file of another: /'
}

for steps in *.yml; do
	name=${steps%.yml}
	agent=$(main_pid)
	find "$work/builds" -name READY -delete
	# shellcheck disable=SC2046
	build=$(bkstub submit --queue b200 --steps "$steps" $(cat "$name.flags"))
	echo "$build" >"$name.build"
	lost=
	if [[ -s $name.during ]]; then
		# shellcheck disable=SC1090
		. "./$name.during" >"$name.said" 2>&1
	fi
	if [[ $lost ]]; then
		# Buildkite learns of an agent that died only minutes later.
		poll restarted
		bkstub log "$build" >"$name.log" 2>&1
		echo lost >"$name.code"
	else
		bkstub wait --timeout 15m "$build" >"$name.log" 2>&1
		echo $? >"$name.code"
	fi
	SECONDS=0
	until
		left >"$name.left" 2>&1
		[[ ! -s $name.left || $SECONDS -gt 180 ]]
	do sleep 0.5; done
done
