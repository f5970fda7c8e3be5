package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// spoil replaces a file with something else, or leaves only its beginning.
func (m *machine) spoil(t *testing.T, how, name string) {
	t.Helper()
	at := filepath.Join(m.h.Root, name)
	was, err := os.ReadFile(at)
	must.Do(t, err)
	if how != "foreign" && how != "empty" {
		err = os.Remove(at)
	}
	switch how {
	case "foreign":
		err = os.WriteFile(at, []byte("# of the operator\n"), 0o644)
	case "empty":
		err = os.Truncate(at, 0)
	case "cut":
		err = os.WriteFile(at, was[:len(was)/2], 0o644)
	case "zeros":
		err = os.WriteFile(at, make([]byte, len(was)), 0o644)
	case "directory":
		err = errors.Join(err, os.Mkdir(at, 0o755), os.WriteFile(at+"/x", nil, 0o644))
	case "link":
		err = errors.Join(err, os.Symlink("/dev/null", at))
	case "loop":
		err = errors.Join(err, os.Symlink(at, at))
	case "fifo":
		err = errors.Join(err, unix.Mkfifo(at, 0o644))
	}
	must.Do(t, err)
}

func slotFiles(k int) []string {
	return []string{
		plan.SlotPolicyPath(k), plan.AgentDir(k) + "/buildkite-agent.cfg", plan.UnitDir + "/" + plan.SliceName(k),
		plan.UnitDir + "/" + plan.JobSocket(k), plan.UnitDir + "/" + plan.JobService(k), plan.UnitDir + "/" + plan.AgentUnit(k),
	}
}

// After a boot, a file of one slot that is not kbnode's keeps down that slot's agent and
// no other.
func TestFaultOfOneSlot(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"foreign", "directory", "link", "loop", "fifo"} {
		for _, name := range slotFiles(1) {
			t.Run(how+" "+filepath.Base(name), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				p := slots(3).plan(t)
				m.apply(p)
				m.spoil(t, how, name)
				must.Do(t, m.sd.Reboot())
				err := m.try(p)
				if slots := slotsOf(err); !slices.Equal(slots, []int{1}) || !strings.Contains(err.Error(), "slot gpu1: "+name+": not written by kbnode") {
					t.Errorf("slots %v: %v", slots, err)
				}
				words := strings.Join(m.sd.Words(), "\n")
				for k := range 3 {
					if started := strings.Contains(words, plan.AgentUnit(k)); started != (k != 1) {
						t.Errorf("agent %d started: %v\n%s", k, started, words)
					}
				}
			})
		}
	}
}

// slotsOf returns the slots that an error of Apply is about; -1 is the rest.
func slotsOf(err error) []int {
	var slots []int
	if rest := reconcile.EachSlot(err, func(slot int, _ error) { slots = append(slots, slot) }); rest != nil {
		slots = append(slots, -1)
	}
	slices.Sort(slots)
	return slices.Compact(slots)
}

// A file that only kbnode writes is written again if a crash cut it off.
func TestCutFileIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"empty", "cut", "zeros"} {
		m := newMachine(t)
		p := slots(2).plan(t)
		m.apply(p)
		before := m.tree()
		for _, name := range append(slotFiles(1), plan.HooksDir+"/environment", plan.UnitDir+"/"+plan.NodeService) {
			m.spoil(t, how, name)
			must.Do(t, os.Chmod(filepath.Join(m.h.Root, name), 0o644))
		}
		m.write(plan.HooksDir+"/mine", "")
		m.apply(p)
		if err := os.Remove(filepath.Join(m.h.Root, plan.HooksDir, "mine")); err != nil {
			t.Fatal("an operator's empty file: ", err)
		}
		equal(t, "tree after "+how, before, m.tree())
	}
	// In the end it is removed, even if its slot is no longer planned.
	m := installed(t, 1)
	want := m.tree()
	m = installed(t, 2)
	m.spoil(t, "empty", plan.UnitDir+"/"+plan.AgentUnit(1))
	m.spoil(t, "cut", plan.SlotPolicyPath(1))
	m.apply(slots(1).plan(t))
	equal(t, "tree without the slot", want, m.tree())
}

// A slot that is to take no jobs stops, whatever else fails: one of its own files, a file
// of another slot or of the node, systemd's reload, or all writes.
func TestParkedWhateverFails(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(m *machine){
		"its unit":       func(m *machine) { m.spoil(t, "foreign", plan.UnitDir+"/"+plan.AgentUnit(0)) },
		"its policy":     func(m *machine) { m.spoil(t, "directory", plan.SlotPolicyPath(0)) },
		"another slot's": func(m *machine) { m.spoil(t, "link", plan.UnitDir+"/"+plan.JobSocket(1)) },
		"a hook":         func(m *machine) { m.spoil(t, "foreign", plan.HooksDir+"/environment") },
		"another hook":   func(m *machine) { m.write(plan.HooksDir+"/post-command", "echo mine\n") },
		"node's unit":    func(m *machine) { m.spoil(t, "foreign", plan.UnitDir+"/"+plan.NodeService) },
		"reload": func(m *machine) {
			m.write(plan.UnitDir+"/"+plan.JobSocket(1), header+"# changed\n")
			m.sd.Hook = failing("reload", errNo)
		},
		"socket's stop": func(m *machine) { m.sd.Hook = failing("stop "+plan.JobSocket(0), errNo) },
		"all writes": func(m *machine) {
			m.spoil(t, "cut", plan.SlotPolicyPath(0))
			m.spoil(t, "cut", plan.SlotPolicyPath(1))
			m.h.OnStep(failing("write ", syscall.EROFS))
		},
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprint(name, busy), func(t *testing.T) {
				t.Parallel()
				m := installed(t, 2)
				if busy {
					m.run(0)
				}
				spoil(m)
				m.sd.Words()
				w := slots(2).park(0)
				if err := m.try(w.plan(t)); err == nil && (!busy || name != "socket's stop") {
					t.Error("no error")
				}
				verb := map[bool]string{true: "drain ", false: "stop "}[busy]
				words := m.sd.Words()
				if !slices.Contains(words, verb+plan.AgentUnit(0)) {
					t.Errorf("the slot still takes jobs: %q", words)
				}
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "stop "+plan.AgentUnit(1)) }) {
					t.Errorf("another slot stopped: %q", words)
				}
				if len(m.sd.Killed()) > 0 {
					t.Errorf("jobs were killed: %q", m.sd.Killed())
				}
			})
		}
	}
}

var errNo = errors.New("no")

// failing returns a hook that fails with an error where the words begin so.
func failing(begin string, err error) func(words string) error {
	return func(words string) error {
		if strings.HasPrefix(words, begin) {
			return err
		}
		return nil
	}
}

// A unit of the node that kbnode did not write is not started, but the slots are.
func TestFaultOfTheNodesUnit(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(1).plan(t)
	m.apply(p)
	m.spoil(t, "foreign", plan.UnitDir+"/"+plan.NodeService)
	must.Do(t, m.sd.Reboot())
	if err := m.try(p); !slices.Equal(slotsOf(err), []int{-1}) {
		t.Error(err)
	}
	words := strings.Join(m.sd.Words(), "\n")
	if !strings.Contains(words, plan.AgentUnit(0)) || strings.Contains(words, "start "+plan.NodeService) {
		t.Errorf("words: %s", words)
	}
}

// Without the hooks that check jobs no agent starts. An operator's own hook keeps none
// down. What runs continues.
func TestFaultOfAHook(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"environment": false, "post-command": true} {
		m := newMachine(t)
		p := slots(2).plan(t)
		m.apply(p)
		m.write(plan.HooksDir+"/"+name, "echo mine\n")
		if err := m.try(p); !slices.Equal(slotsOf(err), []int{-1}) || len(m.sd.Words()) > 13 {
			t.Errorf("%s while it runs: %v", name, err)
		}
		must.Do(t, m.sd.Reboot())
		m.sd.Words()
		if err := m.try(p); err == nil {
			t.Errorf("%s: no error", name)
		}
		started := strings.Contains(strings.Join(m.sd.Words(), "\n"), plan.AgentUnit(1))
		if started != want {
			t.Errorf("%s: started is %v", name, started)
		}
	}
}

// A slot that cannot be changed makes way for one that is to get its CPUs, and otherwise
// keeps serving as it is.
func TestFaultySlotHoldsNoOneUp(t *testing.T) {
	t.Parallel()
	for first, stops := range map[int]bool{0: true, 2: false} {
		m := installed(t, 3)
		m.sd.Words()
		m.spoil(t, "foreign", plan.SlotPolicyPath(1))
		next := slots(3).from(first).again() // 0-1, 2-3, 4-5 of 2-3, 4-5, 6-7
		if err := m.try(next.plan(t)); !slices.Equal(slotsOf(err), []int{1}) {
			t.Error(err)
		}
		words := m.sd.Words()
		if stopped := slices.Contains(words, "stop "+plan.AgentUnit(1)); stopped != stops {
			t.Errorf("from CPU %d: stopped is %v: %q", first, stopped, words)
		}
		if !slices.Contains(words, "start "+plan.AgentUnit(0)+" "+plan.AgentUnit(2)) {
			t.Errorf("the others did not change: %q", words)
		}
	}
}

// An agent of the old scripts whose unit was not replaced is not stopped, because systemd
// would end its job.
func TestFaultySlotOfTheOldScripts(t *testing.T) {
	t.Parallel()
	m := oldNode(t, 2)
	m.write(plan.SlotPolicyPath(0), "{\"written_by\": \"kbnode\"}") // an install that stopped here
	m.run(1)
	w := slots(2).park(1)
	if err := m.try(w.plan(t)); !slices.Equal(slotsOf(err), []int{-1, 0, 1}) {
		t.Error(err)
	}
	words := strings.Join(m.sd.Words(), "\n")
	if strings.Contains(words, "agent-gpu") || len(m.sd.Killed()) > 0 {
		t.Errorf("killed %q: %s", m.sd.Killed(), words)
	}
}

// What must stop is stopped before anything slow.
func TestParkedFirst(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.sd.Words()
	p := slots(2).park(0).again().plan(t)
	s, changes := m.diff(p)
	ctx, cancel := context.WithCancel(t.Context())
	m.h.OnStep(func(words string) error {
		if strings.HasPrefix(words, "write ") {
			cancel()
		}
		return nil
	})
	if _, err := m.h.Apply(ctx, p, s, changes); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	equal(t, "words", []string{"stop " + plan.AgentUnit(0), "stop " + plan.JobSocket(0)}, m.sd.Words())
}

// If systemd has not read a slot's units, the slot keeps those that run.
func TestReloadFails(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	m.sd.Words()
	m.sd.Hook = failing("reload", errNo)
	w := slots(2).again()
	if err := m.try(w.plan(t)); err == nil {
		t.Error("no error")
	}
	equal(t, "words", nil, m.sd.Words())
}
