package reconcile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func (m *machine) run(slot int) {
	m.t.Helper()
	must.Do(m.t, m.sd.RunJob(slot, "job-"+plan.SlotName(slot)))
}

func (m *machine) finish(slot int) {
	m.t.Helper()
	must.Do(m.t, m.sd.FinishJob(slot))
}

// deferred returns why the changes of a slot wait.
func deferred(changes []reconcile.Change, slot int) map[string]bool {
	why := map[string]bool{}
	for _, c := range changes {
		if c.Slot == slot && c.Deferred != "" {
			why[c.Deferred] = true
		}
	}
	return why
}

func TestBusySlotWaits(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.run(0)
	before := m.tree()
	p := slots(2).memory(2 << 30).again().plan(t)

	r, words := m.apply(p)
	equal(t, "words", []string{"reload", "drain agent-gpu0", "stop agent-gpu1", setWord(1, "4-5", 2<<30), "start agent-gpu1"}, words)
	equal(t, "reasons", map[string]bool{"waits for job job-gpu0 of slot gpu0": true}, deferred(r.Deferred, 0))
	equal(t, "deferred", []string{
		"update /etc/kbnode/slots/gpu0.json",
		"update /etc/systemd/system/buildkite-gpu0.slice",
		"set buildkite-gpu0.slice",
		"start buildkite-agent-gpu0.service",
	}, brief(r.Deferred))
	after := m.tree()
	for name, was := range before {
		touches := strings.Contains(name, "gpu0") && !strings.HasSuffix(name, plan.AgentUnit(0))
		if touches && after[name] != was {
			t.Errorf("%s of the busy slot changed", name)
		}
	}

	m.asks(p)
	m.finish(0)
	m.asks(p, "reload", setWord(0, "2-3", 2<<30), "start agent-gpu0")
	m.settled(p)
}

// TestJobsTemplate has the next job run by another unit, while one runs.
func TestJobsTemplate(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.run(0)
	m.write(plan.UnitDir+"/"+plan.JobService(0), header+"[Service]\n# of an earlier version\n")
	p := slots(1).plan(t)
	m.asks(p, "reload")
	m.settled(p)

	// A socket that starts again leaves the job alone, but its slot's other changes wait.
	m.write(plan.UnitDir+"/"+plan.JobSocket(0), header+"[Socket]\n# of an earlier version\n")
	m.asks(p, "reload", "drain agent-gpu0")
	m.ends(0, p)
}

// TestSliceOfJobs has systemd make a slice for the processes of a slot's jobs. It stays when they have ended, and goes
// with the slot.
func TestSliceOfJobs(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.run(1)
	m.settled(slots(2).plan(t))
	one := slots(1).plan(t)
	_, words := m.apply(one)
	equal(t, "words beside a job", []string{"drain agent-gpu1"}, words)
	m.finish(1)
	_, words = m.apply(one)
	equal(t, "its slice is stopped", true, slices.Contains(words, "stop "+plan.JobSlice(1)))
	m.settled(one)
	m.run(0)
	m.finish(0)
	m.uninstall()
	left, err := m.sd.Loaded(t.Context(), "system-*")
	must.Do(t, err)
	equal(t, "slices after uninstall", nil, left)
}

func TestContainerMakesASlotBusy(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.write("/sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/docker-1234.scope/cgroup.events", "populated 1\n")
	next := slots(1).memory(2 << 30)
	r, words := m.apply(next.plan(t))
	equal(t, "words", []string{"drain agent-gpu0"}, words)
	equal(t, "reasons", map[string]bool{"waits for container docker-1234.scope of slot gpu0": true}, deferred(r.Deferred, 0))

	// What is left of a job does not keep a dead agent from starting.
	must.Do(t, m.sd.Fail(plan.AgentUnit(0)))
	m.write("/sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/docker-1234.scope/cgroup.events", "populated 1\n")
	m.asks(slots(1).plan(t), "start agent-gpu0")
}

// What runs in any slot keeps a machine from a reboot: also in one that is no longer planned, and a container without an agent.
func TestActive(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	active := func() string {
		now, err := m.h.Active(t.Context())
		must.Do(t, err)
		return now
	}
	m.run(1)
	must.Do(t, m.sd.Drain(t.Context(), plan.AgentUnit(0), plan.AgentUnit(1)))
	equal(t, "with a job", plan.AgentUnit(1), active())
	m.finish(1)
	equal(t, "without one", "", active())
	m.write("/sys/fs/cgroup/buildkite.slice/cgroup.events", "frozen 0\npopulated 1\n")
	equal(t, "with a container", "a container", active())
	m.write("/sys/fs/cgroup/buildkite.slice/cgroup.events", "populated 0\nfrozen 0\n")
	equal(t, "at last", "", active())
}

// A slot gets no CPU that a job of another slot still has.
func TestIdleSlotWaitsForCPUsOfABusyOne(t *testing.T) {
	t.Parallel()
	m := installed(t, 3) // 2-3, 4-5, 6-7
	m.run(0)
	p := slots(3).from(0).again().plan(t) // 0-1, 2-3, 4-5
	r, words := m.apply(p)
	equal(t, "words", []string{"reload", "drain agent-gpu0",
		"set buildkite.slice AllowedCPUs=0-5 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto"}, words)
	for k := 1; k <= 2; k++ { // slot 1 then keeps 4-5, which slot 2 is to get
		equal(t, "reasons", map[string]bool{"waits for job job-gpu0 of slot gpu0": true}, deferred(r.Deferred, k))
	}
	equal(t, "CPUs of slot 1", "4-5", m.read("/sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/cpuset.cpus"))
	equal(t, "configuration of slot 1", true, strings.HasSuffix(m.read(plan.AgentDir(1)+"/buildkite-agent.cfg"), "g1"))
	p = slots(3).from(0).again().park(1).plan(t) // drained, it takes no jobs while it waits
	m.asks(p, "stop agent-gpu1")
	equal(t, "CPUs of slot 1, drained", "4-5", m.read("/sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/cpuset.cpus"))
	m.ends(0, p)
}

// The slice above all slots keeps the CPUs of a job that runs, or that begins while its agent
// is about to be stopped.
func TestParentDoesNotTakeCPUsFromAJob(t *testing.T) {
	t.Parallel()
	for begins, why := range map[bool]string{false: "waits for job job-gpu0 of slot gpu0", true: "waits for the agent of slot gpu0 to stop"} {
		m := installed(t, 2)                  // 2-5
		p := slots(2).from(4).again().plan(t) // 4-7: no longer 2-3
		if !begins {
			m.run(0)
		}
		r := m.applyAfter(p, func() {
			if begins {
				m.run(0)
			}
		})
		equal(t, "CPUs of the job", "2-3", m.read("/sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/cpuset.cpus.effective"))
		equal(t, "reasons", map[string]bool{why: true}, deferred(r.Deferred, -1))
		m.ends(0, p)
	}
}

func TestBusySlotThatIsNotPlannedAnyMore(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.run(1)
	p := slots(1).plan(t)
	m.asks(p, "drain agent-gpu1")
	if !m.exists(plan.WorkDir(1)) || !m.exists(plan.UnitDir+"/"+plan.SliceName(1)) {
		t.Error("something of the busy slot is gone")
	}
	m.ends(1, p)
	m.wantAbsent(plan.WorkDir(1))
}

// A job may begin between the look at a slot and the stop of its agent.
func TestJobThatBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	p := slots(2).memory(2 << 30).again().plan(t)
	r := m.applyAfter(p, func() { m.run(0) })
	equal(t, "reasons", map[string]bool{"waits for the agent of slot gpu0 to stop": true}, deferred(r.Deferred, 0))
	words := m.sd.Words()
	if slices.ContainsFunc(words, func(w string) bool {
		return strings.HasPrefix(w, "set buildkite-gpu0") || strings.Contains(w, "kbnode-job-gpu0")
	}) {
		t.Errorf("the job was touched: %v", words)
	}
	m.ends(0, p)
}

func TestNowStopsTheJob(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.run(0)
	next := slots(1).again()
	m.h.Now = true
	m.asks(next.plan(t), "reload", "drain agent-gpu0", "kill agent-gpu0 main quit", "stop agent-gpu0", "start agent-gpu0")
	equal(t, "jobs killed", []string{"buildkite-agent-gpu0.service"}, m.sd.Killed())
}

// TestUninstallSaysWhatStays fails to restore a setting.
func TestUninstallSaysWhatStays(t *testing.T) {
	t.Parallel()
	m := newTunedMachine(t)
	m.apply(tuned(t, 1))
	m.h.OnStep(failing("untune "+governor, syscall.EBUSY))
	r, err := m.h.Uninstall(t.Context(), nil)
	must.Do(t, err)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], governor+" is not restored to ") {
		t.Errorf("warnings: %q", r.Warnings)
	}
}

func TestUninstall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write(plan.ConfigPath, "queue: b200 # of the operator\n")
	m.write("/etc/systemd/system/docker.service.d/mine.conf", "[Service]\n")
	before := m.tree()
	m.apply(slots(2).plan(t))
	must.Do(t, m.h.WriteDrains([]plan.Drain{{Slot: 1, By: plan.ByOperator, Reason: "new fan"}}))
	m.settled(slots(2).plan(t)) // the file is not in the way
	drains, err := m.h.ReadDrains()
	must.Do(t, err)
	equal(t, "drained", 1, len(drains))
	equal(t, "mode of the file", "-rw-r--r--", m.tree()[plan.DrainsPath][:10])
	must.Do(t, m.h.WriteInput(plan.TokenPath, "# Written by kbnode\nBUILDKITE_AGENT_TOKEN=s3cret\n"))
	m.write(plan.WorkDir(0)+"/builds/a", "of a job")
	m.write(plan.SocketPath(0), "")
	r, err := m.h.Uninstall(t.Context(), nil)
	must.Do(t, err)
	equal(t, "words", []string{
		"disable kbnode.service",
		"stop kbnode.service",
		"stop buildkite-agent-gpu0.service",
		"stop buildkite-agent-gpu1.service",
		"stop kbnode-job-gpu0.socket",
		"stop kbnode-job-gpu1.socket",
		"stop buildkite-gpu0.slice",
		"stop buildkite-gpu1.slice",
		"stop buildkite.slice",
		"reload",
	}, m.sd.Words())
	// Parent directories that a bare tree does not have, but a system does.
	after := m.tree()
	for _, dir := range []string{"/run/", "/run/systemd/", "/run/systemd/system.control/", "/usr/", "/usr/local/", "/usr/local/libexec/", "/var/", "/var/lib/", "/sys/fs/cgroup/system.slice/"} {
		delete(after, dir)
	}
	for name := range after {
		if strings.HasPrefix(name, "/sys/fs/cgroup/system.slice/") {
			delete(after, name)
		}
	}
	equal(t, "tree", before, after)
	if len(r.Deferred) > 0 {
		t.Errorf("deferred: %v", r.Deferred)
	}
}

func TestUninstallWaitsForJobs(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.run(1)
	var jobs []string
	sleeps := 0
	m.h.Sleep = func(context.Context, time.Duration) error {
		sleeps++
		if sleeps == 2 {
			m.finish(1)
		}
		if !m.exists(plan.UnitDir+"/"+plan.SliceName(1)) && sleeps <= 2 {
			t.Error("the slice of a job is gone")
		}
		m.wantAbsent(plan.UnitDir + "/" + plan.SliceName(0))
		return nil
	}
	if _, err := m.h.Uninstall(t.Context(), func(now []string) { jobs = append(jobs, now...) }); err != nil {
		t.Fatal(err)
	}
	equal(t, "told", []string{"job job-gpu1 of slot gpu1"}, jobs)
	equal(t, "jobs killed", nil, m.sd.Killed())
	if m.exists("/var/lib/kbnode") || m.exists("/sys/fs/cgroup/buildkite.slice") {
		t.Error("something is left")
	}

	m = installed(t, 1)
	m.run(0)
	m.h.Sleep = func(context.Context, time.Duration) error { return context.DeadlineExceeded }
	if _, err := m.h.Uninstall(t.Context(), nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "--now") {
		t.Errorf("error is %v", err)
	}
}
