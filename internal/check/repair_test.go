package check

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestRepairs(t *testing.T) {
	t.Parallel()
	fail := func(detail string) Finding { return Finding{Status: Fail, Detail: detail} }
	ok, warn := Finding{Detail: "fine"}, Finding{Status: Warn}
	r := &Report{Checks: []Result{
		{ID: "a", Findings: []Finding{fail("drift").Safely("kbnode reconcile").Of(3), fail("drift").Safely("kbnode reconcile").Of(1), fail("old").By("reboot")}},
		{ID: "b", Findings: []Finding{ok, warn.Safely("echo on")}},
		{ID: "c", Findings: []Finding{fail("drift").Safely("kbnode reconcile").Of(3), warn.Advise("cool it")}},
		{ID: "d", Findings: []Finding{{Status: OK, Fix: "echo never", Safe: true}, {Status: Skip, Fix: "echo never", Safe: true}}},
	}}
	want := []Repair{{"kbnode reconcile", []string{"a", "c"}, []int{1, 3}}, {"echo on", []string{"b"}, nil}}
	must.Equal(t, want, r.Repairs())
}

func TestRepairRuns(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := (Repair{Command: "echo $((40 + 2)) && echo odd >&2"}).Run(t.Context(), &out); err != nil || out.String() != "42\nodd\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	err := (Repair{Command: "exit 3"}).Run(t.Context(), &out)
	if err == nil || err.Error() != "run exit 3: exit status 3" {
		t.Errorf("%v", err)
	}
}
