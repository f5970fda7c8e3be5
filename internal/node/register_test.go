package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestWaitRegistered has a time limit for the next agent, not for all of them.
func TestWaitRegistered(t *testing.T) {
	t.Parallel()
	const within = 2 * time.Minute
	for name, tt := range map[string]struct {
		registers []time.Duration // when the agent of each slot does; 0 is never
		ends      time.Duration
		late      string
	}{
		"in turn":               {[]time.Duration{90 * time.Second, 200 * time.Second}, 200 * time.Second, ""},
		"one does not":          {[]time.Duration{90 * time.Second, 0}, 210 * time.Second, "gpu1"},
		"none":                  {[]time.Duration{0, 0}, within, "gpu0, gpu1"},
		"the first is too late": {[]time.Duration{3 * time.Minute, 4 * time.Minute}, within, "gpu0, gpu1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, host := installed(t)
			p := &plan.Plan{Slots: systemdtest.Slots(2)}
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				for k, after := range tt.registers {
					if after > 0 {
						time.AfterFunc(after, func() { must.Write(t, n.Root, slot.RegisteredMarker(k), "") })
					}
				}
				err := WaitRegistered(t.Context(), p, host, nil, within, func(int, int) {}, func(plan.Slot, string) {})
				var late *LateError
				if errors.As(err, &late) != (tt.late != "") || late != nil && SlotNames(late.Slots) != tt.late || late == nil && err != nil {
					t.Errorf("%v, want %q late", err, tt.late)
				}
				if took := time.Since(began); took < tt.ends || took > tt.ends+2*registerPoll {
					t.Errorf("took %s, want %s", took, tt.ends)
				}
			})
		})
	}
}
