package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestDrainedSlot takes a slot's agent down and changes nothing else.
func TestDrainedSlot(t *testing.T) {
	t.Parallel()
	in := input(readMachine(t, machinetest.B200x8()), config.Config{Queue: "b200"})
	want := planned(t, in)
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	health := Drain{Slot: 3, By: "gpu.ecc", Reason: "it needs a reset", Since: at}
	operator := Drain{Slot: 3, By: ByOperator, Reason: "new fan", Since: at.Add(time.Hour)}
	in.Drains = []Drain{health, operator, {Slot: 42, By: ByOperator}, {Slot: 43, By: "gpu.ecc"}}
	got := planned(t, in)
	if diff := cmp.Diff([]Drain{operator, health}, got.Slots[3].Drains); diff != "" || got.Slots[3].Serves() || !got.Slots[2].Serves() {
		t.Errorf("serves: %t; %s", got.Slots[3].Serves(), diff)
	}
	want.Slots[3].Drains = got.Slots[3].Drains
	for i, u := range want.Units {
		if u.Name == AgentUnit(3) {
			want.Units[i].Active = false
		}
	}
	want.Warnings = append(want.Warnings, "gpu42 is drained by operator, but does not exist now; a later gpu42 will be drained unless you run sudo kbnode resume gpu42 first")
	must.Equal(t, want, got)
}

func TestDrainsFile(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	operator := Drain{Slot: 2, By: ByOperator, Reason: "new fan", Since: at}
	drains := AddDrain(AddDrain(nil, operator), Drain{Slot: 2, By: "gpu.lost", Reason: "gone", Since: at})
	again := operator
	again.Reason, again.Since = "new board", at.Add(time.Hour)
	drains = AddDrain(AddDrain(drains, again), Drain{Slot: 0, By: ByOperator, Since: at})

	text, err := RenderDrains(drains)
	must.Do(t, err)
	got, err := ParseDrains([]byte(text))
	must.Do(t, err)
	operator.Reason = "new board"
	want := []Drain{{Slot: 0, By: ByOperator, Since: at}, {Slot: 2, By: "gpu.lost", Reason: "gone", Since: at}, operator}
	must.Equal(t, want, got)
	must.Equal(t, want[:2], RemoveDrain(got, 2, ByOperator))
	for _, bad := range []string{"", "[]", `{"schema": 99}`} {
		if _, err := ParseDrains([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
