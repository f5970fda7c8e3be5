#!/bin/bash
# Docker's command line as a command on the host uses it; a line ":: yes WHAT:
# OUTPUT" or ":: no WHAT: OUTPUT" for each.
set -u
say() {
	local what=$1 says
	shift
	if says=$(timeout 120 "$@" 2>&1); then echo ":: yes $what: $(head -c 300 <<<"$says" | tr '\n' ' ')"; else echo ":: no $what: $(head -c 500 <<<"$says" | tr '\n' ' ')"; fi
}

# shellcheck disable=SC2016 # the container's shell expands it
share='ls /dev/nvidia[0-9]*; echo $CUDA_VISIBLE_DEVICES; nproc; grep Cpus_allowed_list /proc/self/status; cat /sys/fs/cgroup/memory.max'
say run docker run busybox:test sh -c "$share"
say "run --rm --gpus" docker run --rm --gpus all --cpus 1000 --memory 1000g busybox:test sh -c "$share"
say "exit code" bash -c 'docker run --rm busybox:test sh -c "exit 42"; test $? = 42'
say "standard input" bash -c 'echo through | docker run -i --rm busybox:test cat'
say "run -d" docker run -d --name service busybox:test sh -c 'echo serving; sleep 3; echo done; exit 3'
say ps docker ps
say inspect docker inspect -f '{{.Name}} {{.HostConfig.CpusetCpus}} {{.State.Running}}' service
say logs docker logs service
say "logs -f" docker logs -f service
say wait docker wait service
say "start again" docker start service
say stop docker stop -t 1 service
say "ps -a" docker ps -a --format '{{.Names}} {{.Status}}'
say rm docker rm service
say create docker create --name created busybox:test echo created
say "start -a" docker start -a created
say pull docker pull 127.0.0.1:5000/pulled:v1
say "pull again" docker pull 127.0.0.1:5000/pulled:v1
say "image inspect" docker image inspect -f '{{.Os}}' busybox:test
say version docker version
say info docker info
say "network ls" docker network ls
echo 'FROM busybox:test' >Dockerfile
for refused in images "image ls" "volume ls" "exec created id" "cp created:/etc/passwd ." "top created" "stats --no-stream created" "build ." \
	"tag busybox:test mine" "rmi busybox:test" "commit created" "export created" "save busybox:test" "network create x" "volume create x" \
	"system df" "system prune -f" "events --until 0s" "rename created x" "restart created" "pause created" "update -m 1g created" "swarm init" "plugin ls" \
	"run -v cache:/cache busybox:test true" "run --ipc host busybox:test true" "run --userns host busybox:test true" "run --network mine busybox:test true" "run --network host busybox:test true" "run -v /etc:/x busybox:test true" "run -p 80:80 busybox:test true" "run --pid host busybox:test true"; do
	# shellcheck disable=SC2086
	say "$refused" docker $refused
done
say rm2 docker rm created
echo ":: done"
