package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/doctor"
)

func TestPrintDoctor(t *testing.T) {
	t.Parallel()
	skip := func(id, group, why string) doctor.Result {
		return doctor.Result{ID: id, Group: group, Status: doctor.Skip, Detail: why}
	}
	one := func(id, group string, f ...doctor.Finding) doctor.Result {
		return doctor.Result{ID: id, Group: group, Status: f[0].Status, Findings: f}
	}
	bad := &doctor.Report{Checks: []doctor.Result{
		one("plan", "node", doctor.Finding{Status: doctor.OK, Detail: "8 slots"}),
		one("gpu-errors", "gpu", doctor.Finding{Status: doctor.Fail, Slots: []int{3, 4, 5}, Detail: "uncorrectable errors", Advice: "reset them"}, doctor.Finding{Status: doctor.OK, Detail: "none"}),
		skip("amd-driver", "gpu", "no AMD GPU"),
		skip("amd-partitions", "gpu", "no AMD GPU"),
		skip("nvidia-mig", "gpu", "no MIG"),
		one("noise-swap", "noise", doctor.Finding{Status: doctor.Warn, Detail: strings.Repeat("swap is on ", 7), Fix: "swapoff -a"}),
	}}
	const below = `
WARN  noise-swap: swap is on swap is on swap is on swap is on swap is on swap is on swap is on ` + `
      type  swapoff -a

FAIL  gpu-errors: slots 3-5: uncorrectable errors
      do    reset them

NOT FIT: 1 failed, 1 warning, 1 ok, 3 skipped.
`
	const table = `GROUP  CHECK             SAW
node   plan        ok    8 slots
gpu    gpu-errors  FAIL  uncorrectable errors
       2 checks    skip  no AMD GPU
       nvidia-mig  skip  no MIG
noise  noise-swap  WARN  swap is on swap is on swap is on swap is on swap is on swap…
`
	for _, tt := range []struct {
		how  verbosity
		want string
	}{
		{plainly, table + below},
		{quietly, below},
		{verbosely, strings.NewReplacer(
			"       2 checks    skip  no AMD GPU\n", "       amd-driver      skip  no AMD GPU\n       amd-partitions  skip  no AMD GPU\n",
			"CHECK             SAW", "CHECK                 SAW", "plan        ok ", "plan            ok ", "gpu-errors  FAIL", "gpu-errors      FAIL", "nvidia-mig  skip", "nvidia-mig      skip", "noise-swap  WARN", "noise-swap      WARN",
		).Replace(table) + below},
	} {
		var out strings.Builder
		printDoctor(&out, bad, tt.how)
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%d: %s", tt.how, diff)
		}
	}
	var out strings.Builder
	printDoctor(&out, &doctor.Report{Fit: true, Checks: bad.Checks[:1]}, quietly)
	if out.Len() > 0 {
		t.Errorf("nothing is wrong: %s", &out)
	}
	printDoctor(&out, &doctor.Report{Fit: true, Checks: bad.Checks[:1]}, plainly)
	if !strings.HasSuffix(out.String(), "\nFIT: 0 failed, 0 warnings, 1 ok, 0 skipped.\n") {
		t.Error(out.String())
	}
}
