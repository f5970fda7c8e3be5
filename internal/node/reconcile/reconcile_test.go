package reconcile_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func setWord(k int, cpus string, memory int64) string {
	return fmt.Sprintf("set buildkite-gpu%d.slice AllowedCPUs=%s AllowedMemoryNodes=0 MemoryMax=%d MemorySwapMax=0 TasksMax=8192 DevicePolicy=closed DeviceAllow=/dev/nvidia%d rw DeviceAllow=char-* m", k, cpus, memory, k)
}

func equal[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func TestFirstInstall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(2).plan(t)
	r, words := m.apply(p)
	equal(t, "words", []string{"enable kbnode", "reload", "start buildkite.slice",
		"set buildkite.slice AllowedCPUs=2-5 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto",
		"start buildkite-gpu0.slice", setWord(0, "2-3", 1<<30), "start buildkite-gpu1.slice", setWord(1, "4-5", 1<<30),
		"start gpu0.socket gpu1.socket", "start agent-gpu0 agent-gpu1", "start kbnode"}, words)
	equal(t, "deferred", nil, r.Deferred)
	done := brief(r.Applied)
	equal(t, "first changes", []string{"adduser kbnode-gpu0", "adduser kbnode-gpu1", "create /etc/buildkite-agent/"}, done[:3])
	written := slices.Index(done, "create "+plan.UnitDir+"/"+plan.NodeService) // by which packaging/kbnode-install.service knows a node
	equal(t, "after the node's service", []string{"enable kbnode.service", "reload systemd"}, done[written+1:written+3])
	equal(t, "partition", "root", m.read("/sys/fs/cgroup/buildkite.slice/cpuset.cpus.partition"))
	equal(t, "memory", "1073741824", m.read("/sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/memory.max"))

	before := m.tree()
	m.settled(p)
	m.asks(p)
	equal(t, "tree after the second run", before, m.tree())
}

func TestReboot(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(1).plan(t)
	m.apply(p)
	before := m.tree()
	must.Do(t, m.sd.Reboot())
	m.asks(p, "start buildkite.slice",
		"set buildkite.slice AllowedCPUs=2-3 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto",
		"start buildkite-gpu0.slice", setWord(0, "2-3", 1<<30), "start gpu0.socket", "start agent-gpu0", "start kbnode")
	equal(t, "tree", before, m.tree())
}

// If a run is killed anywhere, its disk is full, or one step fails, each file is either old or
// new, and the next run leads to the same machine.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	was, is := slots(3), slots(2)
	is = is.memory(2 << 30).again()
	for _, way := range []string{"killed", "full disk", "one step"} {
		for _, from := range []string{"nothing", "an older plan", "the old scripts"} {
			if way == "one step" && from != "an older plan" {
				continue // users would get other numbers
			}
			t.Run(way+" from "+from, func(t *testing.T) {
				t.Parallel()
				prepare := func(t *testing.T) *machine {
					if from == "the old scripts" {
						m := oldNode(t, 2)
						m.chown(4242, "/etc/buildkite-agent", plan.HooksDir)
						m.h.Adopt = true
						return m
					}
					m := newMachine(t)
					if from != "nothing" {
						m.apply(was.plan(t))
					}
					return m
				}
				p := is.plan(t)
				whole, steps := prepare(t), 0
				whole.h.OnStep(func(string) error { steps++; return nil })
				whole.apply(p)
				if steps < 20 {
					t.Fatalf("only %d steps to interrupt", steps)
				}
				for n := range steps {
					m := prepare(t)
					interrupt(t, m, p, way, n)
					m.apply(p)
					again := func(name, _ string) bool { // an interrupted copy is made again
						return strings.HasPrefix(name, reconcile.BackupDir) && (strings.HasSuffix(name, ".2") || strings.HasPrefix(path.Base(name), "."))
					}
					after := m.tree()
					maps.DeleteFunc(after, again)
					if diff := cmp.Diff(whole.tree(), after); diff != "" {
						t.Fatalf("interrupted at step %d (-want +got):\n%s", n, diff)
					}
					m.settled(p)
				}
			})
		}
	}
}

// interrupt applies a plan up to the n-th step.
func interrupt(t *testing.T, m *machine, p *plan.Plan, way string, n int) {
	t.Helper()
	if way == "killed" {
		if m.killAt(n, func() { _ = m.try(p) }) {
			t.Fatalf("step %d was not reached", n)
		}
		return
	}
	step := 0
	m.h.OnStep(func(string) error {
		step++
		if step <= n || way == "one step" && step > n+1 {
			return nil
		}
		return syscall.ENOSPC
	})
	defer m.h.OnStep(nil)
	if err := m.try(p); err == nil {
		t.Fatalf("step %d did not fail", n)
	}
}

func TestFullDiskChangesNothingElse(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	before := m.tree()
	m.h.OnStep(func(words string) error {
		if strings.HasPrefix(words, "rename ") {
			return syscall.ENOSPC
		}
		return nil
	})
	err := m.try(slots(2).memory(2 << 30).again().plan(t))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "write "+plan.AgentDir(0)+"/buildkite-agent.cfg: ") {
		t.Errorf("error is %v", err)
	}
	equal(t, "tree", before, m.tree())
	equal(t, "words", nil, m.sd.Words())
}

func TestChanges(t *testing.T) {
	t.Parallel()
	const agent, socket = "agent-gpu0", "gpu0.socket"
	more, onlyMemory, restarted, parked := slots(1).memory(2<<30).again(), slots(1).memory(2<<30), slots(1).again(), slots(1).park(0)
	for _, tt := range []struct {
		name   string
		before func(m *machine) // after the install of one slot
		plan   want
		words  []string
	}{
		{"a new generation restarts the agent", nil, restarted, []string{"reload", "stop " + agent, "start " + agent}},
		{"new limits are set while the agent runs", nil, onlyMemory, []string{"reload", setWord(0, "2-3", 2<<30)}},
		{"new limits and a new generation: limits first", nil, more, []string{"reload", "stop " + agent, setWord(0, "2-3", 2<<30), "start " + agent}},
		{"a device that somebody added is taken away", func(m *machine) {
			m.write("/run/systemd/system.control/buildkite-gpu0.slice.d/50-DeviceAllow.conf", "[Slice]\nDeviceAllow=\nDeviceAllow=/dev/nvidia1 rw\n")
		}, slots(1), []string{setWord(0, "2-3", 1<<30)}},
		{"an agent that failed starts again", func(m *machine) {
			must.Do(m.t, m.sd.Fail(plan.AgentUnit(0)))
		}, slots(1), []string{"start " + agent}},
		{"a mode that somebody changed needs no word", func(m *machine) {
			p := slots(1).plan(m.t)
			p.Files[0].Mode = 0o700
			m.apply(p)
		}, slots(1), nil},
		{"a unit file that somebody edited is loaded again", func(m *machine) {
			m.write(plan.UnitDir+"/"+plan.JobService(0), header+"[Service]\nExecStart=/bin/evil\n")
		}, slots(1), []string{"reload"}},
		{"a socket has no process that reads its file", func(m *machine) {
			m.write(plan.UnitDir+"/"+plan.JobSocket(0), header+"[Socket]\nSocketMode=0666\n")
		}, slots(1), []string{"reload", "restart " + socket}},
		{"a slot that is parked waits, and nothing else does", func(m *machine) {
			m.sd.Prepare(0)
		}, slots(1), nil},
		{"an agent that has ended its job starts again by itself", func(m *machine) {
			m.sd.Clear(0)
		}, slots(1), nil},
		{"its configuration does not change while it starts", func(m *machine) {
			m.sd.Clear(0)
		}, restarted, []string{"reload", "stop " + agent, "start " + agent}},
		{"one that is to take no more jobs does not", func(m *machine) {
			m.sd.Clear(0)
		}, parked, []string{"stop " + agent, "stop " + socket}},
		{"an agent whose slot is parked starts again as planned", func(m *machine) {
			m.sd.Prepare(0)
		}, restarted, []string{"reload", "stop " + agent, "start " + agent}},
		{"it stops if the slot is to take no jobs", func(m *machine) {
			m.sd.Prepare(0)
		}, parked, []string{"stop " + agent, "stop " + socket}},
		{"a drop-in of an operator stays", func(m *machine) {
			m.write(plan.UnitDir+"/"+plan.AgentUnit(0)+".d/50-mine.conf", "[Service]\nNice=5\n")
		}, slots(1), nil},
		{"a parked slot stops", nil, parked, []string{"stop " + agent, "stop " + socket}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := installed(t, 1)
			if tt.before != nil {
				tt.before(m)
				m.sd.Words()
			}
			m.asks(tt.plan.plan(t), tt.words...)
			m.settled(tt.plan.plan(t))
			if m.exists(plan.UnitDir+"/"+plan.AgentUnit(0)+".d/50-mine.conf") != (tt.name == "a drop-in of an operator stays") {
				t.Error("the operator's drop-in is gone")
			}
		})
	}
}

func TestLimitThatTheKernelDoesNotTake(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	w := slots(2).from(125) // the machine ends at 127
	err := m.try(w.plan(t))
	must.Err(t, err, "slice buildkite-gpu1.slice: /sys/fs/cgroup/buildkite.slice/buildkite-gpu1.slice/cpuset.cpus.effective is 127, should be 127-128, although it was set")
	words := m.sd.Words()
	if !slices.Contains(words, "start buildkite-agent-gpu0.service") {
		t.Error("the slot that has its limits does not run")
	}
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "agent-gpu1") }) {
		t.Errorf("an agent was started in a slot without its limits: %v", words)
	}
}

func TestStaleSlotIsRemoved(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	want := m.tree()
	m = installed(t, 1)
	two := slots(2)
	m.apply(two.plan(t))
	m.write(plan.WorkDir(1)+"/builds/a", "of a job")
	m.asks(slots(1).plan(t), "stop agent-gpu1", "stop gpu1.socket", "stop buildkite-gpu1.slice", "reload",
		"set buildkite.slice AllowedCPUs=2-3 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto")
	equal(t, "tree", want, m.tree())
}

func TestOfflineTree(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.h.Systemd = nil
	_, changes := m.diff(slots(1).plan(t))
	if names := brief(changes); !slices.Contains(names, "start kbnode.service") || slices.Contains(names, "reload systemd") {
		t.Errorf("changes are %v", names)
	}
}

func TestKeptFile(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	config := filepath.Join(m.h.Root, plan.ConfigPath)
	modeOnly := func() *plan.Plan {
		p := slots(1).plan(t)
		p.Files = append(p.Files, plan.File{Path: plan.ConfigPath, Mode: 0o644, Owner: "root", ModeOnly: true, Slot: -1})
		return p
	}
	m.settled(modeOnly())
	for _, edit := range []string{"# " + plan.Marker + "\nqueue: a\n", "queue: b\n"} {
		m.write(plan.ConfigPath, edit)
		must.Do(t, os.Chmod(config, 0o666))
		m.apply(modeOnly())
		must.Equal(t, strings.TrimSpace(edit), m.read(plan.ConfigPath))
		if fi, err := os.Stat(config); err != nil || fi.Mode().Perm() != 0o644 {
			t.Errorf("anybody may write it: %v, %v", fi, err)
		}
		m.settled(modeOnly())
	}
	must.Do(t, errors.Join(os.Remove(config), os.Symlink("/etc/elsewhere", config)))
	m.settled(modeOnly())
}
