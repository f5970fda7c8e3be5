package doctor

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// scene is a machine, and what one check says about it.
type scene struct {
	name, id string
	f        *fake
	files    map[string]string
	changes  []reconcile.Change
	want     string // status and summary
	fix      string // of the last finding
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

func play(t *testing.T, scenes []scene) {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range scenes {
		t.Run(s.id+", "+s.name, func(t *testing.T) {
			t.Parallel()
			m := machineOf(t, s.f, s.files)
			observe(m)
			m.Changes = s.changes
			got := answer(t, m, s.id)
			if diff := cmp.Diff(s.want, got.Status.String()+": "+got.Summary()); diff != "" {
				t.Error(diff)
			}
			fix := ""
			if n := len(got.Findings); n > 0 {
				fix = got.Findings[n-1].Fix
			}
			for _, f := range got.Findings {
				if f.Status >= Warn && f.Fix == "" && f.Advice == "" {
					t.Errorf("it says nothing of what to do: %+v", f)
				}
			}
			if fix != s.fix {
				t.Errorf("type %q, want %q", fix, s.fix)
			}
		})
		seen[s.id] = true
	}
	// Each check of the group is also run with a garbage file and must not panic.
	for id := range seen {
		t.Run(id+", garbage", func(t *testing.T) {
			t.Parallel()
			for _, s := range scenes {
				if s.id != id {
					continue
				}
				files := map[string]string{}
				for name := range s.files {
					files[name] = "\x00\xff:,|[]- \n99999999999999999999 -1 - \n\n::::\n"
				}
				m := machineOf(t, s.f, files)
				observe(m)
				m.Changes = s.changes
				got := answer(t, m, id)
				for _, f := range got.Findings {
					if f.Status == Fail && f.Advice == "report it, with the file that sudo kbnode doctor --bundle FILE writes" {
						t.Errorf("%s: %s", s.name, f.Detail)
					}
				}
			}
		})
	}
}
