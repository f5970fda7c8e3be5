#!/bin/bash
# shellcheck disable=SC2016 # other shells expand what stands in single quotes
# What a command on the host does with its own slot's Docker socket.
set -u
say() { if "${@:2}" >/tmp/out 2>&1; then echo ":: yes $1: $(head -c 300 /tmp/out | tr '\n' ' ')"; else echo ":: no $1: $(head -c 300 /tmp/out | tr '\n' ' ')"; fi; }

case $1 in
tend)
	docker run -d --name own busybox:test sleep 1000 >/dev/null
	say "pause" docker pause own
	say "exec" docker exec own id
	say "update" docker update --cpus 20 own
	say "commit" docker commit own evil
	say "copy" docker cp /etc/passwd own:/
	say "kill" docker kill own
	say "remove" docker rm -f own
	docker run -d --name neighbour busybox:test sleep 1000 >/dev/null
	say "neighbour is my own" bash -c 'docker inspect neighbour | grep -q kbnode-gpu'"$KERNELBOT_GPU_INDEX"'-neighbour'
	say "name of the engine's" docker run --rm --name "kbnode-gpu7-neighbour" busybox:test true
	say "create" docker create --name created busybox:test true
	say "restart policy" bash -c "docker run -d --restart always --name again busybox:test true; docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' again | grep -qx no"
	say "volume" docker volume create evil
	say "network" docker network create evil
	say "anonymous volume" docker run --rm -v /data busybox:test true
	say "named volume" docker run --rm -v evil:/data busybox:test true
	say "socket in a container" docker run --rm -v "/run/kbnode/gpu$KERNELBOT_GPU_INDEX/docker.sock:/d" busybox:test true
	say "plugins in a container" docker run --rm -v "$HOME/plugins:/p" busybox:test true
	say "home in a container" docker run --rm -v "$HOME:/p" busybox:test true
	say "arguments" docker run --rm busybox:test echo "$(head -c 100000 /dev/zero | tr '\0' x)" "$(head -c 100000 /dev/zero | tr '\0' y)"
	say "environment" docker run --rm -e "A=$(head -c 130000 /dev/zero | tr '\0' x)" busybox:test sh -c 'test ${#A} = 130000'
	# A file with root's setuid bit, made in a container.
	docker run --rm -v "$PWD:/w" busybox:test sh -c 'cp /bin/busybox /w/rootly; chown 0:0 /w/rootly; chmod 6755 /w/rootly'
	ln -s rootly id
	say "setuid of a container" bash -c 'stat -c "%U %a" rootly; test "$(./id -u)" = 0'
	# Connections that say nothing, and ones that say it slowly.
	perl -MSocket -e '
		$SIG{PIPE} = "IGNORE";
		(my $path = $ENV{DOCKER_HOST}) =~ s,^unix://,,;
		for my $i (0 .. 199) {
			socket($held[$i], PF_UNIX, SOCK_STREAM, 0) or die;
			connect($held[$i], sockaddr_un($path)) or next;
			syswrite($held[$i], "GET /_ping HTTP/1.1\r\nX: ") if $i % 2;
		}
		open F, ">flood"; close F;
		for (1 .. 300) { syswrite($held[$_ * 2 - 1], "x") for 1 .. 100; select(undef, undef, undef, 0.5) }' &
	while [[ ! -e flood ]]; do sleep 0.2; done
	say "through the flood" timeout 100 docker run --rm busybox:test echo through
	;;
many)
	# Some that do not listen to signals, and then more for as long as nobody ends
	# the one who makes them. Thirty would take a minute to start, emulated.
	for ((i = 0; i < 12; i++)); do
		docker create busybox:test sh -c 'trap "" TERM HUP; while :; do sleep 3; done' >>ids
	done
	xargs docker start <ids >/dev/null
	[[ $(docker ps -q | wc -l) -lt 12 ]] || echo ":: yes many run"
	cat >/tmp/maker.sh <<'MAKER'
trap '' TERM HUP INT
while :; do docker run -d --restart always busybox:test sleep 1000; done
MAKER
	setsid -f bash /tmp/maker.sh >/dev/null 2>&1
	;;
end)
	# Takes the agent away from a container and from itself.
	docker run -d busybox:test sleep 1000
	touch READY
	kill -9 -1
	;;
esac
