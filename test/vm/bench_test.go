//go:build vm

package vm_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hookCost runs, in turn and in the place of a job's hooks, an empty hook, the two
// of kbnode that every job pays for, and the commands of the setup scripts' one
// hook: of its calls nvidia-smi is the only one that is not bash's own. It prints
// microseconds.
const hookCost = `
unit=buildkite-agent-gpu0
echo $$ >/sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/$unit.service/cgroup.procs
cat >/tmp/empty <<'END'
#!/bin/bash
END
cat >/tmp/old <<'END'
#!/bin/bash
set -euo pipefail
count=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
index=${BUILDKITE_AGENT_META_DATA_GPU_INDEX:-0}
cpus=$(($(nproc --all) / count)); memory=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 1024 / 1024 / count))
export CUDA_VISIBLE_DEVICES=$index KERNELBOT_CPUSET=$((index * cpus))-$((index * cpus + cpus - 1)) KERNELBOT_MEMORY=${memory}g
END
chmod 755 /tmp/empty /tmp/old
# What the real one costs on a machine without persistence mode is more.
command -v nvidia-smi >/dev/null || { printf '#!/bin/sh\nseq 0 7\n' >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi; }
cost() { # NAME SCRIPT
	local began=${EPOCHREALTIME/./}
	setpriv --reuid kbnode-gpu0 --regid kbnode-gpu0 --clear-groups env KBNODE_SLOT=0 KBNODE_BINARY=/usr/local/bin/kbnode "$2" >/dev/null 2>&1
	echo "$1 $((${EPOCHREALTIME/./} - began))"
}
for i in {1..20}; do
	cost empty /tmp/empty
	cost environment /etc/buildkite-agent/hooks/environment
	cost pre-exit /etc/buildkite-agent/hooks/pre-exit
	cost old /tmp/old
done
`

// BenchmarkHooks compares what a job's hooks cost, emulated: what counts is how
// they compare.
func BenchmarkHooks(b *testing.B) {
	m := installed(b)
	var costs map[string][]int
	for b.Loop() {
		costs = map[string][]int{}
		for line := range strings.Lines(m.Sh(hookCost)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			us, err := strconv.Atoi(text)
			if err != nil {
				b.Fatal(err)
			}
			costs[name] = append(costs[name], us)
		}
	}
	median := func(name string) float64 {
		slices.Sort(costs[name])
		return float64(costs[name][len(costs[name])/2])
	}
	own := median("empty")
	for _, name := range []string{"environment", "pre-exit", "old"} {
		b.ReportMetric((median(name)-own)/1000, name+"-ms")
		if name != "old" {
			b.ReportMetric((median(name)-own)/(median("old")-own), fmt.Sprintf("%s/old", name))
		}
	}
}
