//go:build vm

package vm_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/vm"
)

// flood starts one container, which says much, in turn over the engine's own socket
// and over its slot's guard. It prints milliseconds.
const flood = `
guard=unix:///run/kbnode/gpu0/docker.sock
docker -H $guard create --name flood busybox:test sh -c 'head -c %d /dev/zero' >/dev/null
cost() { # NAME SOCKET CONTAINER
	local began=${EPOCHREALTIME/./} got
	got=$(docker -H "$2" start -a "$3" | wc -c)
	[ "$got" = %[1]d ] || exit 9
	echo "$1 $(((${EPOCHREALTIME/./} - began) / 1000))"
}
cost warm $guard flood
for i in {1..5}; do
	cost engine unix:///run/docker.sock kbnode-gpu0-flood
	cost guard $guard flood
done
docker -H $guard rm flood >/dev/null
`

// BenchmarkOutput compares how fast a container's output comes from Docker itself
// and through the guard. The start of the container is in both.
func BenchmarkOutput(b *testing.B) {
	const size = 48_000_000
	m := installed(b)
	m.Wait("a node as planned", "kbnode status >/dev/null")
	for b.Loop() {
		costs := map[string]float64{}
		for line := range strings.Lines(m.Sh(fmt.Sprintf(flood, size))) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if ms := numbers(b, text)[0]; costs[name] == 0 || ms < costs[name] {
				costs[name] = ms
			}
		}
		b.ReportMetric(size/costs["engine"]/1000, "engine-MB/s")
		b.ReportMetric(size/costs["guard"]/1000, "guard-MB/s")
		b.ReportMetric(costs["engine"]/costs["guard"], "ratio")
		b.ReportMetric(numbers(b, m.Sh("awk '/VmHWM/ {print $2}' /proc/$(systemctl show -P MainPID kbnode-guard-gpu0)/status"))[0]/1024, "guard-peak-MiB")
	}
}

// restores prints how many seconds the daemon takes to restore a limit that was changed through
// systemd, which signals it.
const restores = `
limit=/sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/memory.max
planned=$(cat $limit)
for i in 1 2 3; do
	systemctl set-property --runtime buildkite-gpu2.slice MemoryMax=1G
	began=${EPOCHREALTIME/./}
	until [ "$(<$limit)" = $planned ]; do sleep 0.05; done
	echo "$(((${EPOCHREALTIME/./} - began) / 1000))e-3"
	sleep 20
done
`

// BenchmarkRest is a node at which nothing happens, with eight idle slots: what
// the daemon, and the probes that it starts, cost in five minutes. One full pass
// and ten looks fall into them. Then a limit is changed.
func BenchmarkRest(b *testing.B) {
	const rest = 5 * time.Minute
	m := installed(b)
	m.Wait("a node as planned", "kbnode status >/dev/null")
	factor := slowness(b, m)
	const read = `daemon=$(systemctl show -P MainPID kbnode); echo $daemon
		awk '$1 == "usage_usec" {print $2}' /sys/fs/cgroup/system.slice/kbnode.service/cpu.stat
		awk '$1 == "write_bytes:" {print $2}' /proc/$daemon/io; awk '$1 == "VmRSS:" {print $2}' /proc/$daemon/status`
	for b.Loop() {
		before := numbers(b, m.Sh(read))
		time.Sleep(rest)
		after := numbers(b, m.Sh(read))
		if before[0] != after[0] {
			b.Fatal("the daemon was not at rest: it started anew")
		}
		cpu := (after[1] - before[1]) / 1e6 / rest.Seconds() * 100
		b.ReportMetric(cpu, "%CPU-emulated")
		b.ReportMetric(cpu/factor, "%CPU")
		b.ReportMetric(factor, "times-slower")
		b.ReportMetric(after[2]-before[2], "B-written")
		b.ReportMetric(after[3]/1024, "MiB-RSS")
		drift := slices.Min(numbers(b, m.Sh(restores)))
		b.ReportMetric(drift, "s-drift-emulated")
		b.ReportMetric(drift/factor, "s-drift")
	}
}

// slowness is by how much the emulated machine is slower than this one: the same
// program runs here and there.
func slowness(b testing.TB, m *vm.Machine) float64 {
	b.Helper()
	const starts = 20
	var here time.Duration
	for range starts {
		c := exec.Command(os.Getenv("KBNODE_BIN"), "version")
		if err := c.Run(); err != nil {
			b.Fatal(err)
		}
		here += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	there := numbers(b, m.Sh(fmt.Sprintf("TIMEFORMAT='%%3U %%3S'; { time for ((i = 0; i < %d; i++)); do kbnode version; done >/dev/null; } 2>&1", starts)))
	return (there[0] + there[1]) / here.Seconds()
}

func numbers(b testing.TB, text string) []float64 {
	b.Helper()
	var all []float64
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}
