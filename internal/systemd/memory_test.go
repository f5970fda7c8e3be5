package systemd

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/slot"
)

// Only a unit in exactly the same state is not asked again.
func TestMemory(t *testing.T) {
	t.Parallel()
	since := time.UnixMicro(1_700_000_000_000_001).UTC()
	unit := slot.Unit{
		Name: "a.service", Load: "loaded", Active: "active", Sub: "running", Since: since,
		MainPID: 7, Restarts: 2, ExitStatus: 1, Result: "success", Cgroup: "/a", NeedReload: true,
	}
	var m Memory
	m.keep(unit)
	m.keep(slot.Unit{Name: "b.service", Active: "active", MainPID: 8})
	for name, tt := range map[string]struct {
		ask  slot.Unit
		want bool
	}{
		"the same":            {slot.Unit{Name: "a.service", Active: "active", Sub: "running", Since: since}, true},
		"a microsecond later": {slot.Unit{Name: "a.service", Active: "active", Sub: "running", Since: since.Add(time.Microsecond)}, false},
		"another state":       {slot.Unit{Name: "a.service", Active: "failed", Sub: "running", Since: since}, false},
		"another part of it":  {slot.Unit{Name: "a.service", Active: "active", Sub: "exited", Since: since}, false},
		"another unit":        {slot.Unit{Name: "c.service", Active: "active", Sub: "running", Since: since}, false},
		"since nobody knows":  {slot.Unit{Name: "b.service", Active: "active"}, false},
	} {
		got := tt.ask
		if m.recall(&got) != tt.want {
			t.Errorf("%s: known is %t", name, !tt.want)
		}
		want := tt.ask
		if tt.want {
			// What is not part of its state is asked each time.
			want.MainPID, want.Restarts, want.ExitStatus, want.Result, want.Cgroup = 7, 2, 1, "success", "/a"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	var none *Memory
	none.keep(unit)
	if none.recall(&unit) {
		t.Error("nothing remembers")
	}
}
