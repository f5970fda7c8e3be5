//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
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
// the daemon with the probes that it starts costs in five minutes. One full pass and ten looks fall into them. Then a limit is changed.
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
		must.Do(b, c.Run())
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
		must.Do(b, err)
		all = append(all, n)
	}
	return all
}

// began is a job that says when its container's first instruction ran.
const began = `steps:
  - command: echo began $$(date +%%s%%N)
    agents: {queue: b200, gpu-index: "0"}
    plugins:
      - docker#v5.11.0: {image: "kernelbot-test:latest", gpus: all, propagate-environment: true, %s}
`

// starts are jobs that start in different ways, with the options of the plugin, and the network of their containers.
// A network of one's own costs Docker more than its default one, which has no resolver.
var starts = []struct{ name, options, network string }{
	{"evaluation", "skip-checkout: true, network: none, environment: [KBNODE_PROFILE=strict]", "none"},
	{"network", "skip-checkout: true", plan.NetworkName(0)},
	{"fetch", "skip-checkout: false", plan.NetworkName(0)},
}

// startTimes returns how long jobs of the first slot took from the agent's start of the job to the
// container's first instruction.
func startTimes(t testing.TB, m *vm.Machine, options string) (took []time.Duration) {
	t.Helper()
	p := pipelines{evaluations{m: m}}
	m.Put("/root/began.yml", 0o600, fmt.Sprintf(began, options))
	for range 1 + 5 {
		build := m.Sh("bkstub submit --queue b200 --steps /root/began.yml")
		p.wait(t, build, "passed")
		var b struct {
			Jobs []struct {
				StartedAt time.Time `json:"started_at"`
			}
		}
		must.Do(t, json.Unmarshal([]byte(m.Sh(p.asking(build))), &b))
		var at int64
		if _, err := fmt.Sscan(regexp.MustCompile(`(?m)^began ([0-9]+)`).FindStringSubmatch(m.Sh("bkstub log " + build))[1], &at); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Unix(0, at).Sub(b.Jobs[0].StartedAt))
	}
	took = took[1:] // the first one reads its programs from the disk
	slices.Sort(took)
	return took
}

// dockerTimes returns how long Docker takes by itself to a container's first instruction, in a slot without a
// job.
func dockerTimes(t testing.TB, m *vm.Machine, network string) (took []time.Duration) {
	t.Helper()
	for range 5 {
		var from, to int64
		if _, err := fmt.Sscan(m.Sh("date +%s%N; docker run --rm --network "+network+" --cgroup-parent buildkite-gpu1.slice kernelbot-test:latest date +%s%N"), &from, &to); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(to-from))
	}
	slices.Sort(took)
	return took
}

// BenchmarkStart is the time from the agent's start of a job to the first instruction of its container, and that of
// a container that Docker starts by itself.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		m := installed(b)
		factor := slowness(b, m)
		for _, kind := range starts {
			now, docker := startTimes(b, m, kind.options)[2], dockerTimes(b, m, kind.network)[2]
			b.ReportMetric(now.Seconds(), kind.name+"-s-emulated")
			b.ReportMetric(docker.Seconds(), kind.name+"-s-docker-emulated")
			b.ReportMetric((now-docker).Seconds()*1e3/factor, kind.name+"-ms-more-than-docker")
		}
		b.ReportMetric(factor, "times-slower")
	}
}
