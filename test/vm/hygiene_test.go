//go:build vm

package vm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// slotIs waits until status says so of a slot, with this in its problems.
func slotIs(t *testing.T, m *vm.Machine, slot int, word, problem string) {
	t.Helper()
	deadline := time.Now().Add(m.Limit(2 * time.Minute))
	for {
		s := status(t, m).Slots[slot]
		has := strings.Join(s.Problems, "; ")
		if s.Agent == word && (problem == "") == (has == "") && strings.Contains(has, problem) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("slot %d is %s with %q; want %s with %q", slot, s.Agent, has, word, problem)
			return
		}
	}
}

// TestHygiene parks slots whose GPU does not become idle after a job.
func TestHygiene(t *testing.T) {
	t.Parallel()
	m := installed(t)

	t.Run("a process on the GPU that is not a job's", func(t *testing.T) {
		pid := m.Sh("setsid sleep 7777 >/dev/null 2>&1 </dev/null & echo $!")
		m.Sh("echo 'gpu.5.processes = " + pid + ":1048576' >>/etc/fake-nvml.conf")
		// The job does not wait for the driver, and so does not hear of it.
		if r := runStep(m, 5, step(5, "busybox:test", "echo a job", "")); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		begun := time.Now()
		slotIs(t, m, 5, "parked", "process "+pid+" (sleep), which does not belong to a job")
		t.Logf("the slot is parked %v after the job's end", time.Since(begun).Round(time.Second))
		idle(t, m, 4)
		m.Sh("kbnode reconcile")
		slotIs(t, m, 5, "parked", "process "+pid)
		m.Sh("kill " + pid + "; echo 'gpu.5.processes =' >>/etc/fake-nvml.conf")
		slotIs(t, m, 5, "idle", "")
		idle(t, m, 5)
	})

	t.Run("memory of the GPU that stays in use, and a restart", func(t *testing.T) {
		m.Sh("echo 'gpu.7.used_mib = 512' >>/etc/fake-nvml.conf")
		if r := runStep(m, 7, step(7, "busybox:test", "echo a job", "")); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
		}
		slotIs(t, m, 7, "parked", "512 MiB in use without a compute process, and 0 MiB when idle")
		m.Sh("systemctl restart --no-block buildkite-agent-gpu7")
		slotIs(t, m, 7, "parked", "512 MiB")
		must.Equal(t, "success 0", m.Sh("systemctl show -P Result,NRestarts buildkite-agent-gpu7 | xargs"))
		m.Sh("echo 'gpu.7.used_mib = 60' >>/etc/fake-nvml.conf")
		slotIs(t, m, 7, "idle", "")
		idle(t, m, 7)
	})
}
