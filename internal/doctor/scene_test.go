package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// scene is a machine, and what one check says about it.
type scene struct {
	name, id string
	f        *fake
	files    map[string]string
	want     string // status and summary
	fix      string // of the first finding that is as bad as any
}

// drifts returns a machine like f that differs from the plan.
func drifts(f *fake, changes ...reconcile.Change) *fake {
	drifted := *f
	drifted.changes = changes
	return &drifted
}

// observe reads the slots' run directories, as reconcile does, into a state of the
// machine's own: a scene and its garbage run at the same time on one fake.
func observe(m *Machine) {
	if m.State == nil {
		return
	}
	state := *m.State
	state.Slots = slices.Clone(state.Slots)
	for i := range state.Slots {
		now := state.Slots[i].Look(m.Root)
		state.Slots[i].Registered, state.Slots[i].Parked = now.Registered, now.Parked
	}
	m.State = &state
}

// run asks the check, after a change of the machine, if any.
func (s scene) run(t *testing.T, change func(*Machine)) *Result {
	t.Helper()
	m := machineOf(t, s.f, s.files)
	observe(m)
	if change != nil {
		change(m)
	}
	got := answer(t, m, s.id)
	if diff := cmp.Diff(s.want, got.Status.String()+": "+got.Summary()); diff != "" {
		t.Error(diff)
	}
	fix := ""
	if i := slices.IndexFunc(got.Findings, func(f Finding) bool { return f.Status == got.Status }); i >= 0 {
		fix = got.Findings[i].Fix
	}
	if fix != s.fix {
		t.Errorf("type %q, want %q", fix, s.fix)
	}
	return got
}

// garbled runs the check on garbage in place of each file, which must yield a sentence and no panic.
func (s scene) garbled(t *testing.T) {
	t.Helper()
	files := map[string]string{}
	for name := range s.files {
		files[name] = "\x00{\xff:,|[]- \n99999999999999999999 -1 - \n\n::::\n" + strings.Repeat("a", 70000) + "\n"
	}
	m := machineOf(t, s.f, files)
	observe(m)
	if said := answer(t, m, s.id).Summary(); said == "" || strings.Contains(said, "kbnode crashed") || len(said) > 600 || strings.Contains(said, "\n") {
		t.Errorf("%.700q", said)
	}
}

func play(t *testing.T, scenes []scene) {
	t.Helper()
	for _, s := range scenes {
		if s.f.inv == nil {
			s.f.inv = &inventory.Inventory{}
		}
		if s.f.plan == nil {
			s.f.plan = &plan.Plan{}
		}
		t.Run(s.id+"/"+s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, nil)
			if len(s.files) > 0 {
				s.garbled(t)
			}
		})
	}
}
