//go:build vm

package vm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// settings prints what timings depend on and kbnode sets, but for the interrupts
// that no one can move.
const settings = `for f in /proc/irq/default_smp_affinity /sys/devices/virtual/workqueue/cpumask /sys/devices/virtual/workqueue/writeback/cpumask \
	/sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/khugepaged/defrag /sys/kernel/mm/ksm/run /proc/sys/kernel/numa_balancing; do
	[ -e $f ] && echo "$f $(cat $f)"
done
for f in /proc/irq/*/smp_affinity_list; do (cat $f >$f) 2>/dev/null && echo "$f $(cat $f)"; done`

// shared shows limits that all slots share.
const shared = "cat /proc/sys/fs/inotify/max_user_instances /proc/sys/kernel/pty/max /proc/sys/fs/aio-max-nr /proc/sys/fs/pipe-user-pages-soft"

// spoilt is a machine as its maker left it.
const spoilt = `echo always >/sys/kernel/mm/transparent_hugepage/enabled; echo 1 >/sys/kernel/mm/transparent_hugepage/khugepaged/defrag; echo 1 >/sys/kernel/mm/ksm/run
[ ! -e /proc/sys/kernel/numa_balancing ] || echo 1 >/proc/sys/kernel/numa_balancing
echo 'persistence = 0' >>/etc/fake-nvml.conf`

// TestQuiet looks at what is set so that timings are steady, and at the record of
// how quiet jobs had it.
func TestQuiet(t *testing.T) {
	t.Parallel()
	m := forked(t)
	m.Sh(spoilt)
	before, limits := m.Sh(settings), m.Sh(shared)
	m.Sh(installCommand + "; bkstub wait-agents --count 8 --timeout 5m")
	allIdle(t, m)
	const thp, defrag = "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag"

	t.Run("set", func(t *testing.T) {
		m.Sh("grep -q '\\[madvise\\]' " + thp + "; test $(cat " + defrag + ") = 0; test $(cat /sys/kernel/mm/ksm/run) = 0; test $(grep -c '^gpu.*persistence = 1' /etc/fake-nvml.conf) = 8")
		reserved := m.Sh("kbnode plan --json | jq -r .reserved.cpus")
		for line := range strings.Lines(m.Sh("for f in /proc/irq/*/smp_affinity_list; do (cat $f >$f) 2>/dev/null && cat $f; done")) {
			line = strings.TrimSpace(line)
			if line != reserved {
				t.Errorf("an interrupt may come to CPUs %s; %s are reserved", line, reserved)
			}
		}
		if got := m.Sh("kbnode reconcile"); strings.Contains(got, "tune") {
			t.Errorf("the second pass says %s", got)
		}
	})

	t.Run("a record of each job", func(t *testing.T) {
		m.Sh("printf 'gpu.2.sm_clock = 1965\\ngpu.2.clock_reasons = 0x40\\n' >>/etc/fake-nvml.conf")
		rec := jobRecord(t, m, 2, "sleep 8; ln -sf /etc/shadow node.json")
		if !rec.Noisy || !strings.Contains(strings.Join(rec.Why, "; "), "hw_thermal_slowdown") || rec.GPU.Samples == 0 || rec.Slot != "gpu2" {
			t.Errorf("of a hot GPU: %+v", rec)
		}
		if p := rec.Protection; p.Kernel == "" || p.Landlock == nil || len(p.Containers) != 1 || p.Containers[0].PIDs == nil || !*p.Containers[0].PIDs || p.Containers[0].Seccomp == nil || !*p.Containers[0].Seccomp {
			t.Errorf("of what protects it: %+v", p)
		}
		rec = jobRecord(t, m, 3, "sleep 8")
		if strings.Contains(strings.Join(rec.Why, "; "), "slowdown") || rec.GPU.Samples == 0 {
			t.Errorf("of a cool GPU: %+v", rec)
		}
		m.Sh("if pgrep -f '[s]ample --uuid'; then exit 1; fi; sed -i '/^gpu.2.sm_clock/d; /^gpu.2.clock_reasons/d' /etc/fake-nvml.conf")
		allIdle(t, m, 3)
	})

	t.Run("uninstall leaves what an operator has set", func(t *testing.T) {
		m.Sh("systemctl stop kbnode; echo never >" + thp + "; kbnode uninstall")
		if got := m.Sh("cat " + thp); !strings.Contains(got, "[never]") {
			t.Errorf("it is %s", got)
		}
		m.Sh("echo always >" + thp)
		must.Equal(t, limits, m.Sh(shared))
		must.Equal(t, before, m.Sh(settings))
	})
}

// jobRecord runs a job and returns its noise record, which it uploads.
func jobRecord(t *testing.T, m *vm.Machine, slot int, command string) noise.Record {
	t.Helper()
	m.Put("/root/record.yml", 0o600, step(slot, "busybox:test", command, "")+"    artifact_paths: [node.json]\n")
	build := m.Sh("bkstub submit --queue b200 --steps /root/record.yml")
	r := m.Try("bkstub wait --timeout 5m " + build)
	if r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Stdout)
	}
	text := m.Sh("bkstub artifact " + build + " node.json")
	var rec noise.Record
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		t.Fatalf("node.json: %v\n%s\n%s", err, text, tail(r.Stdout))
	}
	return rec
}
