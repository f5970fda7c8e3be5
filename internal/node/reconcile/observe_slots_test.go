package reconcile_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// A job whose processes cannot be read, for a minute or forever, leaves its slot busy and
// the others as they are.
func TestProcessesThatHang(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a deadline")
	}
	m := newMachine(t)
	p := slots(2).plan(t)
	m.apply(p)
	m.run(0)
	state, err := m.h.Observe(t.Context(), p)
	if err != nil || state.Slots[0].Job == nil {
		t.Fatalf("%+v, %v", state, err)
	}
	environ := filepath.Join(m.h.Root, "proc", strconv.Itoa(state.Slots[0].Job.PID), "environ")
	must.Do(t, os.Remove(environ))
	if err := syscall.Mkfifo(environ, 0o600); err != nil { // opening it hangs
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f, err := os.OpenFile(environ, os.O_RDWR, 0); err == nil {
			_ = f.Close()
		}
	})
	parked := filepath.Join(m.h.Root, plan.RunDir(0), slot.ParkedDir)
	must.Do(t, os.MkdirAll(parked, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(parked, "gpu.json"), []byte(`{"reason": "its GPU is in use"}`), 0o600))
	for range 2 {
		began := time.Now()
		state, err = m.h.Observe(t.Context(), p)
		if err != nil || state.Slots[0].Busy() == "" || state.Slots[1].Busy() != "" || len(state.Warnings) != 1 || !strings.Contains(state.Warnings[0], "slot gpu0 is treated as busy") {
			t.Errorf("%+v, %v", state, err)
		}
		states, err := m.h.Slots(t.Context(), p.Slots)
		if err != nil || len(states) != 2 || !states[0].Agent.Running() || states[0].Job == nil || states[1].Job != nil || *states[0].Job != (slot.Job{ID: "unknown"}) {
			t.Errorf("by themselves: %+v, %v", states, err)
		} else if len(states[0].Parked) != 1 {
			t.Errorf("the job hides why its slot takes no other: %+v", states[0])
		}
		if time.Since(began) > 30*time.Second {
			t.Error("it waits for what hangs again and again")
		}
	}
}
