package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 28, 12, 0, 0, 0, time.UTC)
	boot, err := signals.Now()
	must.Do(t, err)
	pending := []plan.Drain{{Slot: 0, By: plan.ByOperator, Reboot: boot.Boot}}
	job := []slot.State{{Index: 0, Name: "gpu0", Job: &slot.Job{ID: "0192"}}, {Index: 1, Name: "gpu1", Agent: slot.Unit{Active: "active"}}}
	for _, tt := range []struct {
		name, until string
		drains      []plan.Drain
		slots       []slot.State
		want        string
	}{
		{"nothing ends", "", nil, job, ""},
		{"days before the loan's end", "2026-12-31", nil, nil, "the loan ends in 2 days, at 2026-12-31 00:00 UTC: slots then finish their jobs and take no more; loan.until in /etc/kbnode/config.yaml says so"},
		{"hours before the loan's end", "2026-12-28T18:00", nil, nil, "the loan ends in 6 hours, at 2026-12-28 18:00 UTC: slots then"},
		{"minutes before the loan's end", "2026-12-28T12:20", nil, nil, "the loan ends in 20 minutes, at 2026-12-28 12:20 UTC: slots then"},
		{"long before the loan's end", "2027-01-31", nil, nil, ""},
		{"after the loan's end", "2026-12-28", nil, nil, ""},
		{"a reboot that waits", "", pending, job, "the machine reboots when its slots are idle: it waits for job 0192 of slot gpu0, the agent of slot gpu1; sudo kbnode resume --all cancels that"},
		{"a reboot that waits no longer", "", pending, nil, "the machine reboots now"},
		{"a reboot of an earlier boot", "", []plan.Drain{{By: plan.ByOperator, Reboot: "1"}}, job, ""},
	} {
		n := &Node{Config: config.Config{Loan: config.Loan{Until: tt.until}}, Drains: tt.drains, Plan: &plan.Plan{Slots: []plan.Slot{{Index: 0, Name: "gpu0"}, {Index: 1, Name: "gpu1"}}}}
		if got := strings.Join(n.ends(&reconcile.State{Slots: tt.slots}, now), "\n"); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestInstallAfterALoan installs a machine whose loan has ended: no agent starts, and the plan says why.
func TestInstallAfterALoan(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	for until, serves := range map[string]bool{"2020-01-31": false, "2999-01-31": true} {
		host, sd := bareMachine(t)
		o := InstallOptions{Config: config.Config{Queue: "b200", Loan: config.Loan{Until: until}}, Token: "the-agent-token", Yes: true}
		report, err := installs(t, host, o, &screen{})
		must.Do(t, err)
		if started := slices.ContainsFunc(sd.Words(), startsAgent); started != serves {
			t.Errorf("lent until %s: an agent starts: %v", until, started)
		}
		p := report.Plan
		warned := strings.Contains(strings.Join(p.Warnings, "\n"), "the loan ended at 2020-01-31 00:00 ")
		if p.Slots[0].Serves() != serves || warned == serves || p.LoanUntil.Format(time.DateOnly) != until {
			t.Errorf("lent until %s: %+v, %q", p.LoanUntil, p.Slots[0].Drains, p.Warnings)
		}
		if drains, err := host.ReadDrains(); err != nil || len(drains) > 0 { // only the daemon writes what its clock says
			t.Errorf("stored %+v, %v", drains, err)
		}
	}
}
