package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
)

func TestChosenSlots(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: wantedSlots(4)}
	for _, tt := range []struct {
		all  bool
		args []string
		want []string
		says string
	}{
		{false, []string{"gpu3", "0"}, []string{"gpu3", "gpu0"}, ""},
		{true, nil, []string{"gpu0", "gpu1", "gpu2", "gpu3"}, ""},
		{true, []string{"gpu1"}, nil, "leave out gpu1"},
		{false, nil, nil, "write slots such as gpu3, or --all"},
		{false, []string{"gpu4"}, nil, "it has gpu0, gpu1, gpu2, gpu3"},
		{false, []string{"gpu"}, nil, `no slot "gpu"`},
		{false, []string{"-1"}, nil, `no slot "-1"`},
	} {
		slots, err := chosenSlots(p, tt.all, tt.args)
		var got []string
		for _, s := range slots {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: %s", tt.args, diff)
		}
		var exit *exitError
		if tt.says != "" && (!errors.As(err, &exit) || exit.code != exitUsage || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.says)
		}
	}
}

// TestSlotlessDrains checks that drains without a slot can be resumed, by name and with all.
func TestSlotlessDrains(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: wantedSlots(2)}
	with := withSlots(p, slotless(p, []plan.Drain{{Slot: 1, By: plan.ByOperator}, {Slot: 5, By: plan.ByOperator}, {Slot: 6, By: "gpu.ecc"}}))
	slots, err := chosenSlots(with, false, []string{"gpu5"})
	if err != nil || len(slots) != 1 || slots[0].User != "" {
		t.Errorf("gpu5 is %+v: %v", slots, err)
	}
	if all, err := chosenSlots(with, true, nil); err != nil || len(all) != 3 {
		t.Errorf("all are %+v: %v", all, err)
	}
	if _, err := chosenSlots(with, false, []string{"gpu6"}); err == nil {
		t.Error("what health has drained is resumed")
	}
	if len(p.Slots) != 2 {
		t.Errorf("the plan has %d slots now", len(p.Slots))
	}
}

func TestDrainReason(t *testing.T) {
	t.Parallel()
	for reason, ok := range map[string]bool{
		"": true, "new fan, slot 3 (ticket 12)": true, "größer": true,
		"two\nlines": false, "\x1b[31mred": false, strings.Repeat("é", maxDrainReason): true, strings.Repeat("é", maxDrainReason+1): false,
	} {
		if err := checkReason(reason); (err == nil) != ok {
			t.Errorf("%q: %v", reason, err)
		}
	}
}
