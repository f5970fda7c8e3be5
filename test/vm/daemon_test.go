//go:build vm

package vm_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// allIdle waits until status finds nothing wrong.
func allIdle(t *testing.T, m *vm.Machine, slots ...int) {
	t.Helper()
	m.Wait("a node as planned", "kbnode status >/dev/null")
	for _, s := range slots {
		slotIs(t, m, s, "idle", "")
	}
}

// TestDaemon breaks a node in many ways; the daemon fixes it without a command.
func TestDaemon(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Sh("printf 'metrics:\n  listen: 127.0.0.1:9700\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode") // for all parts
	m.Wait("the metrics", "curl -s http://127.0.0.1:9700/metrics >/dev/null")
	allIdle(t, m)
	const memory2 = "/sys/fs/cgroup/buildkite.slice/buildkite-gpu2.slice/memory.max"
	planned := m.Sh("cat " + memory2)

	t.Run("rest", func(t *testing.T) {
		before, io := m.Sh(writes), m.Sh("grep ^write_bytes /proc/$(systemctl show -P MainPID kbnode)/io")
		began := m.Sh("awk '{print $14+$15}' /proc/$(systemctl show -P MainPID kbnode)/stat")
		time.Sleep(100 * time.Second)
		must.Equal(t, before, m.Sh(writes))
		must.Equal(t, io, m.Sh("grep ^write_bytes /proc/$(systemctl show -P MainPID kbnode)/io"))
		t.Logf("ticks of 10 ms, emulated: %s, 100 s before: %s; %s", m.Sh("awk '{print $14+$15}' /proc/$(systemctl show -P MainPID kbnode)/stat"), began,
			m.Sh("grep VmRSS /proc/$(systemctl show -P MainPID kbnode)/status; cat /sys/fs/cgroup/system.slice/kbnode.service/memory.current"))
	})

	t.Run("drift", func(t *testing.T) {
		m.Sh("systemctl set-property --runtime buildkite-gpu2.slice MemoryMax=1G; test $(cat " + memory2 + ") = 1073741824")
		signaled := time.Now()
		m.Wait("what systemd tells", "test $(cat "+memory2+") = "+planned)
		t.Logf("mended %v after systemd's signal, emulated", time.Since(signaled).Round(100*time.Millisecond))
		m.Sh("echo 1G >" + memory2 + "; rm /etc/buildkite-agent/hooks/agent-startup; echo '# by hand' >>/etc/systemd/system/kbnode-job-gpu1@.service; systemctl stop kbnode-job-gpu4.socket")
		m.Wait("what nobody tells", "test $(cat "+memory2+") = "+planned+" && test -x /etc/buildkite-agent/hooks/agent-startup && ! grep -q 'by hand' /etc/systemd/system/kbnode-job-gpu1@.service && systemctl is-active -q kbnode-job-gpu4.socket")
		allIdle(t, m)
		if got := m.Sh("kbnode events --since 10m"); !strings.Contains(got, "set buildkite-gpu2.slice") || !strings.Contains(got, "create /etc/buildkite-agent/hooks/agent-startup") {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("a job, while everything else ends", func(t *testing.T) {
		wake := asleep(t, m, 5)
		for range 4 {
			m.Sh("rm -f /etc/buildkite-agent/hooks/environment /etc/buildkite-agent/agent-[0-4]/environment; echo 2G >" + memory2 + "; systemctl reload kbnode")
			time.Sleep(time.Duration(rand.IntN(6000)) * time.Millisecond)
			m.Sh("systemctl kill -s KILL kbnode")
			m.Wait("the next daemon", "systemctl is-active -q kbnode")
		}
		m.Sh("systemctl restart dbus; systemctl restart kbnode; kill -HUP $(systemctl show -P MainPID kbnode)")
		wake()
		allIdle(t, m, 5)
	})

	t.Run("a full disk below /etc", func(t *testing.T) {
		m.Sh(`mkdir /run/etc; mount -t tmpfs -o size=64m full /run/etc; cp -a /etc/. /run/etc; mount --bind /run/etc /etc
			rm /etc/buildkite-agent/hooks/agent-startup; dd if=/dev/zero of=/etc/filler bs=4k 2>/dev/null || true
			cp -a /etc/systemd/system/kbnode.service /root/kbnode.service; systemctl reload kbnode`)
		m.Wait("the error", "systemctl show -P StatusText kbnode | grep -q 'no space left on device'")
		if got := m.Sh("find /etc -name '.*agent-startup*' -o -name 'agent-startup*' -path '*buildkite*'; cmp /etc/systemd/system/kbnode.service /root/kbnode.service"); got != "" {
			t.Errorf("half a file: %s", got)
		}
		m.Sh("rm /etc/filler")
		allIdle(t, m)
		m.Sh("test -x /etc/buildkite-agent/hooks/agent-startup; umount -l /etc; umount -l /run/etc; test -x /etc/buildkite-agent/hooks/agent-startup")
		allIdle(t, m, 0)
	})

	t.Run("a clock that jumps", func(t *testing.T) {
		wake := asleep(t, m, 2)
		before := m.Sh("systemctl show -P NRestarts kbnode")
		for _, jump := range []string{"+3 days", "-6 days", "+3 days"} {
			m.Sh("date -s '" + jump + "' >/dev/null; sleep 5; rm /etc/buildkite-agent/hooks/agent-startup; systemctl reload kbnode")
			m.Wait("the mended hook", "test -x /etc/buildkite-agent/hooks/agent-startup")
		}
		wake()
		must.Equal(t, before, m.Sh("systemctl show -P NRestarts kbnode"))
		allIdle(t, m, 2)
	})

	t.Run("a driver that hangs, and one that crashes", func(t *testing.T) {
		m.Sh("echo 'hang = 3600' >>/etc/fake-nvml.conf; systemctl reload kbnode; sleep 60")
		idle(t, m, 3) // it was clear; after this job, no one can say so
		slotIs(t, m, 3, "parked", "it is not known whether a job still uses the GPU")
		m.Sh("sed -i /^hang/d /etc/fake-nvml.conf")
		allIdle(t, m, 3)
		m.Sh("echo 'crash = 1' >>/etc/fake-nvml.conf; systemctl reload kbnode; sleep 40")
		idle(t, m, 3)
		slotIs(t, m, 3, "parked", "it is not known whether a job still uses the GPU")
		m.Sh("sed -i /^crash/d /etc/fake-nvml.conf; systemctl reload kbnode")
		allIdle(t, m, 3)
	})

	t.Run("a sick GPU", func(t *testing.T) {
		// What root writes there is not the kernel's.
		m.Sh("pci=$(kbnode status --json | jq -r '.slots[5].pci'); echo \"<3>NVRM: Xid (PCI:${pci%.*}): 79, pid=1, GPU has fallen off the bus.\" >/dev/kmsg")
		m.Sh("echo 'gpu.4.recovery_action = 1' >>/etc/fake-nvml.conf")
		slotIs(t, m, 4, "drained", "gpu.recovery")
		idle(t, m, 5)
		m.Wait("the same story", "curl -s http://127.0.0.1:9700/metrics >/root/metrics; "+
			`grep -q '^kbnode_slot_drained{by="gpu.recovery",slot="gpu4"} 1$' /root/metrics && grep -q '^kbnode_slot_state{slot="gpu4",state="drained"} 1$' /root/metrics && `+
			`grep -q '^kbnode_slot_state{slot="gpu5",state="idle"} 1$' /root/metrics && grep -q '^kbnode_health_verdicts{check="gpu.recovery",.*slot="gpu4"} 1$' /root/metrics`)
		ofNode := func(f doctor.Finding) bool { return len(f.Slots) == 0 } // such as of the clock that has jumped
		if f := slices.DeleteFunc(asked(t, m, "--only health")["health"].Findings, ofNode); len(f) != 1 || !slices.Equal(f[0].Slots, []int{4}) || !strings.Contains(f[0].Detail, "gpu.recovery") {
			t.Errorf("doctor tells another story: %+v", f)
		}
		m.Sh("systemctl kill -s KILL kbnode; sleep 20")
		slotIs(t, m, 4, "drained", "gpu.recovery")
		if r := m.Try("kbnode resume gpu4"); r.Code != 1 || !strings.Contains(r.Stdout, "still drained by gpu.recovery") {
			t.Errorf("resume: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("sed -i /recovery_action/d /etc/fake-nvml.conf")
		slotIs(t, m, 4, "idle", "")
		idle(t, m, 4)
		if got := m.Sh("kbnode events"); !strings.Contains(got, "gpu.recovery raised") || !strings.Contains(got, "gpu.recovery cleared") || strings.Contains(got, "gpu.lost") {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("drain", func(t *testing.T) {
		wake := asleep(t, m, 6)
		if out := m.Sh("kbnode drain gpu6 1 --reason 'new fan'"); !strings.Contains(out, "gpu6: finishes job ") || !strings.Contains(out, "gpu1: drained") {
			t.Errorf("drain says %s", out)
		}
		m.Sh("systemctl kill -s KILL kbnode")
		slotIs(t, m, 6, "draining", "")
		drain := m.Start("kbnode", "drain", "6", "--wait")
		wake()
		if r := drain.Wait(); r.Code != 0 || !strings.HasSuffix(strings.TrimSpace(r.Stdout), "gpu6: drained") {
			t.Errorf("drain --wait: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Reboot()
		m.Sh("bkstub wait-agents --count 6 --timeout 5m")
		allIdle(t, m, 0)
		slotIs(t, m, 6, "drained", "")
		if got := m.Sh("kbnode resume --all"); strings.Count(got, "takes jobs") != 8 {
			t.Errorf("resume says %s", got)
		}
		m.Sh("bkstub wait-agents --count 8 --timeout 3m")
		idle(t, m, 6)
		if got := m.Sh("kbnode events"); !strings.Contains(got, "gpu6 is drained by operator: new fan") || !strings.Contains(got, "gpu6 may take jobs again") {
			t.Errorf("events: %s", got)
		}
	})
}
