//go:build vm

package vm_test

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/vm"
)

const (
	// Small processes: none of them is larger than the agent.
	manySmall = `for i in $(seq 60); do sh -c 'x=$(printf %08000000d 0); sleep 8; :' & done; wait`
	forkBomb  = `f() { f | f & }; f; exec sleep 5`
	stubborn  = `trap '' TERM INT HUP QUIT; touch READY; while :; do sleep 1; done`
	daemon    = `setsid sh -c 'trap "" TERM HUP; (setsid sleep 1000 &); while :; do sleep 1; done' </dev/null >/dev/null 2>&1 &`
	// The neighbor says at its end whether it still has what it had.
	undisturbed = `share() {
	nproc; grep _allowed_list /proc/self/status
	grep . /sys/fs/cgroup/cpuset.cpus.effective /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max
	ls /dev/nvidia*; env | grep -E "^(CUDA|NVIDIA|KERNELBOT_[GCM])" | sort; cat /workdir/secret
}
cd /workdir; echo "secret of slot $KERNELBOT_GPU_INDEX" >secret
share >before; touch READY
while [ ! -e stop ]; do sleep 1; done
share >after; cat before; diff before after && echo :: untouched`
	// All that a container can write to, of which some is Docker's unless one sees to it.
	fills = `for f in /big /workdir/big /data/big; do
  dd if=/dev/zero of=$f bs=1M count=1000 2>/dev/null || echo ":: $f is full"; rm $f
  fallocate -l 100000000000 $f 2>/dev/null || echo ":: $f is not allocated"; rm -f $f
done
for f in /etc/hosts /etc/resolv.conf /etc/hostname; do
  dd if=/dev/zero bs=1M count=1000 2>/dev/null >>$f || echo ":: $f is full"; : >$f
done
mkdir /workdir/many && cd /workdir/many && seq 40000 | xargs touch 2>/dev/null || echo ":: no more files"; cd /; rm -r /workdir/many
echo :: filled`
	// What a checkout must be able to remove.
	rubbish = `import os, socket
os.makedirs("locked/in", exist_ok=True)
for i in range(20000):
    open(f"many-{i}", "w").close()
s = socket.socket(socket.AF_UNIX); s.bind("a-socket"); os.mkfifo("a-fifo")
for kind in (0o060000, 0o020000):
    try:
        os.mknod(f"node-{kind}", kind | 0o666, os.makedev(254, 0)); print(":: device made")
    except OSError as e:
        print(":: no device")
top = os.getcwd()
for i in range(5000):
    os.mkdir("d"); os.chdir("d")
os.chdir(top)
open("locked/in/file", "w").close()
os.chown("locked", 0, 0); os.chmod("locked/in", 0); os.chmod("locked", 0)
print(":: rubbish left")`
	// What links must not lead out of the checkout.
	links = `mkdir -p leak
ln -s /etc/passwd link-passwd; ln -s /var/lib/buildkite-agent/gpu-7 link-neighbour; ln -s nowhere link-dangling; ln -s link-loop link-loop
ln -s / link-root; ln -s ../../../../../../../../etc/shadow link-up; ln -s / leak/root
ln -s /etc/shadow leak/shadow; ln -s /etc/buildkite-agent/token leak/token; ln -s /run/credentials/buildkite-agent-gpu3.service/token leak/credential
ln -s /proc/self proc; ln -s /var/lib/buildkite-agent/gpu-2 builds; ln -s /proc/self/environ leak/environ; ln -s /proc/self/mem leak/mem; ln -s /root/token leak/root-token;
ln -s /etc/shadow result.json
echo :: linked`
	next = `x=$(printf %050000000d 0); echo ":: next with ${#x}"`
	// What a container must not have.
	secretChecks = `for v in BUILDKITE_AGENT_ACCESS_TOKEN BUILDKITE_AGENT_JOB_API_SOCKET BUILDKITE_AGENT_JOB_API_TOKEN BUILDKITE_AGENT_TOKEN DOCKER_HOST; do
  if env | grep -q "^$v="; then echo ":: variable $v"; fi
done
for f in "$BUILDKITE_ENV_FILE" /run/kbnode /var/run/docker.sock /run/docker.sock /etc/buildkite-agent /etc/kbnode /var/lib/buildkite-agent /var/lib/docker /root/token; do
  if [ -n "$f" ] && [ -e "$f" ]; then echo ":: file $f"; fi
done
grep -E 'sock|buildkite|kbnode' /proc/self/mountinfo
find / -xdev -type s 2>/dev/null | sed 's/^/:: socket /'
if echo x >>/usr/local/bin/kbnode; then echo ":: kbnode written"; fi
for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /sys/fs/cgroup/memory.max /sys/fs/cgroup/cgroup.procs /sys/kernel/mm/ksm/run; do
  if (echo 1 >$f) 2>/dev/null; then echo ":: wrote $f"; fi
done
if mount -t tmpfs none /mnt 2>/dev/null; then echo ":: mounted"; fi
if mknod /x b 254 0 2>/dev/null; then echo ":: device made"; fi
for k in 1 2 3 4 5 6 7; do if [ -e /dev/nvidia$k ]; then echo ":: GPU $k"; fi; done
if chroot /proc/1/root true 2>/dev/null && [ -e /proc/1/root/etc/kbnode ]; then echo ":: host root"; fi
echo ":: payload of ${#KERNELBOT_PAYLOAD_0}"
dd if=/dev/zero of=/dev/shm/x bs=1M 2>/dev/null || echo :: shm is full
dd if=/dev/zero of=/big bs=1M count=400 2>/dev/null && cat /big >/dev/null && echo :: cache is no matter; rm -f /big /dev/shm/x
head -c 3000000 /dev/zero | tr '\0' x | fold -w 200; echo; echo :: all said
ulimit -c unlimited 2>/dev/null || true; sleep 100 & kill -SEGV $!; wait $! || true
if ls core* /core* 2>/dev/null | grep -q .; then echo ":: core dumped"; fi
echo ":: looked"`
)

// attacks are the lanes of the attacking slots. Each ends with a harmless job.
func attacks() [][]attack {
	lanes := [][]attack{
		{
			{name: "secrets and memory", script: secretChecks + "\n" + manySmall + "\necho :: went on", rest: "    artifact_paths: [result.json]\n", flags: "--env KERNELBOT_PAYLOAD_0=" + strings.Repeat("x", 130000),
				wants: []string{"the job used more memory than its slot has", "looked", "shm is full", "cache is no matter", "all said", "payload of 130000"}, code: "1",
				not: []string{"variable", "file", "socket", "kbnode written", "wrote", "mounted", "device made", "GPU", "host root", "core dumped", "went on"}},
			{name: "disk", image: "volume:test", script: fills, code: "0",
				wants: []string{"/big is full", "/big is not allocated", "/workdir/big is full", "/workdir/big is not allocated", "/data/big is full", "/data/big is not allocated",
					"/etc/hosts is full", "/etc/resolv.conf is full", "/etc/hostname is full", "no more files", "filled"}},
			{name: "deaf", script: daemon + "\n(trap '' TERM HUP; yes) &\n" + stubborn, code: "1", not: []string{"log of", "dockerd has"},
				during: `ready; sleep 3; c=$(container); du -sm /var/lib/docker/containers/$c | awk '$1 > 80 {print "log of " $1 " MiB"}'
ps -C dockerd -o rss= | awk '$1 > 500000 {print "dockerd has " $1 " KiB"}'; bkstub cancel $build`},
		},
		{
			{name: "forks without end", script: forkBomb},
			{name: "cancelled at the pull", script: "true", image: "127.0.0.1:5999/slow:latest", option: ", always-pull: true", code: "1",
				during: `perl -MIO::Socket -e '$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:5999", Listen => 5) or die; $c = $s->accept; open F, ">/root/attack/pulling"; close F; sleep 60' &
poll test -e /root/attack/pulling; bkstub cancel $build`},
		},
		{
			{name: "links and rubbish", image: "kernelbot-test:latest", script: links + "\npython3 -c '" + rubbish + "'", wants: []string{"linked", "rubbish left", "no device"}, not: []string{"device made"},
				rest: "    artifact_paths: [result.json, \"leak/*\", \"link-*\", \"proc/environ\", \"builds/**/*\"]\n", check: leaks},
		},
		{
			{name: "shim killed", script: "touch READY; sleep 1000", during: `ready; pkill -9 -f "containerd-shim.*$(container)"`, code: "1"},
			{name: "agent killed", script: "touch READY; sleep 1000", during: "ready; kill -9 $(main_pid); lost=1", code: "lost", later: true},
		},
	}
	for i := range lanes {
		lanes[i] = append(lanes[i], attack{name: "next", script: next, code: "0", wants: []string{"next with 50000000"}})
	}
	return lanes
}

// leaks looks for what an upload must not have followed.
func leaks(t *testing.T, m *vm.Machine, r outcome) {
	for _, path := range []string{"result.json", "leak/shadow", "leak/token", "leak/credential", "leak/root-token", "leak/mem", "leak/environ", "link-up", "proc/environ"} {
		if got := m.Try("bkstub artifact " + r.build + " " + path); got.Code == 0 && got.Stdout != "" {
			t.Errorf("the artifact %s was uploaded: %.200q", path, got.Stdout)
		}
	}
}
