package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	all := systemdtest.Slots(4)
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
		slots, err := Selection{tt.all, tt.args}.In(all)
		var got []string
		for _, s := range slots {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: %s", tt.args, diff)
		}
		if _, input := errors.AsType[*config.InputError](err); tt.says != "" && (!input || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.says)
		}
	}
}

// TestSlotlessDrains checks that drains without a slot can be resumed, by name and with all.
func TestSlotlessDrains(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: systemdtest.Slots(2)}
	got := slotless(p, []plan.Drain{{Slot: 1, By: plan.ByOperator}, {Slot: 5, By: plan.ByOperator}, {Slot: 6, By: "gpu.ecc"}})
	if len(got) != 1 || got[0].Name != "gpu5" || got[0].Index != 5 || got[0].User != "" {
		t.Errorf("resume knows %+v", got) // and not what health has drained
	}
}
