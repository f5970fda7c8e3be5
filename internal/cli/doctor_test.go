package cli

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/acceptance"
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
	const table = `GROUP  CHECK             FOUND
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
			"CHECK             FOUND", "CHECK                 FOUND", "plan        ok ", "plan            ok ", "gpu-errors  FAIL", "gpu-errors      FAIL", "nvidia-mig  skip", "nvidia-mig      skip", "noise-swap  WARN", "noise-swap      WARN",
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

func TestPrintAcceptance(t *testing.T) {
	t.Parallel()
	out := acceptanceOutput{
		Node: "n1", Kbnode: "v1", Queues: []string{"b200"}, GPUs: []string{"gpu0: NVIDIA B200, GPU-1"}, Image: "ghcr.io/x:1",
		Report: &acceptance.Report{Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Items: []acceptance.Item{
			{ID: "doctor", About: "the node is fit", Verdict: acceptance.Passed, Saw: "90 checks", Seconds: 12.34},
			{ID: "restart", About: "an agent is back", Verdict: acceptance.Untried, Saw: "no slot is idle", Do: "again"},
		}},
	}
	var text strings.Builder
	printAcceptance(&text, out)
	want := `Node    n1
Time    2026-03-01 12:00:00 UTC
kbnode  v1, ` + runtime.GOARCH + `
Queue   b200
Image   ghcr.io/x:1
GPU     gpu0: NVIDIA B200, GPU-1

   ITEM              VERDICT    SECONDS
1  the node is fit   passed     12.3
2  an agent is back  NOT TRIED  0.0
 1. passed: 90 checks
 2. not tried: no slot is idle
    do  again

NOT ACCEPTED: 1 passed, 0 failed, 1 not tried, 0 by hand. Send all of this to the operators.
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}
