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
