package doctor

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/selftest"
)

func TestContainerCheck(t *testing.T) {
	t.Parallel()
	held := []selftest.Check{{Tried: "all CPUs", Saw: "CPUs 0-3", Held: true}}
	f := &fake{slots: []selftest.SlotReport{
		{Index: 0, Checks: held},
		{Index: 1, Checks: []selftest.Check{{Tried: "its own GPU", Saw: "[]", Do: "sudo kbnode reconcile"}, held[0]}},
		{Index: 2, Skipped: "it is busy with job 7"},
		{Index: 3, Checks: held},
	}}
	got := answer(t, machineOf(t, f, nil), "container")
	want := []Finding{
		fail("its own GPU: saw []").Of(1).Advise("sudo kbnode reconcile; sudo kbnode selftest --slot 1 runs every test in this slot"),
		ok("its GPU, CPUs and memory").Of(0, 3),
		skip("it is busy with job 7").Of(2),
	}
	if diff := cmp.Diff(want, got.Findings); diff != "" || got.Status != Fail {
		t.Errorf("%s: %s", got.Status, diff)
	}
	f.slots = f.slots[2:3]
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Skip {
		t.Errorf("all busy: %+v", got)
	}
	f.err = errors.Join(context.DeadlineExceeded, context.DeadlineExceeded)
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Fail || got.Summary() != "the containers did not end within 0s: Docker is slow or hangs" {
		t.Errorf("slow: %+v", got)
	}
	f.err = errors.New("no engine")
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Fail || got.Summary() != "no engine" {
		t.Errorf("no engine: %+v", got)
	}
}
