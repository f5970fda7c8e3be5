#!/bin/bash
# The neighbour: a job on the host with a container, which goes on until there is
# a file "stop" in its checkout and then says whether it still has what it had.
set -u
slice=/sys/fs/cgroup/buildkite.slice/buildkite-gpu$KERNELBOT_GPU_INDEX.slice

host() {
	grep _allowed_list /proc/self/status
	(cd "$slice" && grep -H . cpuset.cpus.effective cpuset.mems.effective memory.max memory.swap.max pids.max)
	for k in 0 1 2 3 4 5 6 7; do (exec 3<>"/dev/nvidia$k") 2>&1; done | sed 's/.*dev/dev/'
	echo "$CUDA_VISIBLE_DEVICES $(cat secret /tmp/secret) $(stat -c '%n %U %a' . secret)"
	pgrep -u "$USER" -c -f neighbour.sh
}

inside='share() {
	nproc; grep _allowed_list /proc/self/status
	grep . /sys/fs/cgroup/cpuset.cpus.effective /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max
	ls /dev/nvidia*; env | grep -E "^(CUDA|NVIDIA|KERNELBOT_[GCM])" | sort; cat /w/secret
}
share >/w/inside.before; touch /w/inside.ready
while [ ! -e /w/stop ]; do sleep 1; done
share >/w/inside.after'

echo "secret of slot $KERNELBOT_GPU_INDEX" >secret
cp secret /tmp/secret
docker run --rm --init --name neighbour -v "$PWD:/w" busybox:test sh -c "$inside" &
while [[ ! -e inside.ready ]]; do sleep 0.5; done
host >host.before
touch READY
while [[ ! -e stop ]]; do sleep 1; done
host >host.after
wait %1
status=$?
cat host.before inside.before
diff host.before host.after && diff inside.before inside.after && [[ $status == 0 ]] && echo ":: untouched"
