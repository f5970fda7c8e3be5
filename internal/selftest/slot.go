package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// trial is one slot's part of a run.
type trial struct {
	t      *tester
	plan   plan.Slot
	policy plan.JobPolicy
	state  slot.State
	report SlotReport
}

// skipReason returns why a slot is not tried, or "" if it is.
func (s *trial) skipReason() string {
	if why := s.state.Away(s.plan); why != "" {
		return why
	}
	if busy := s.state.Busy(); busy != "" {
		return "it is busy with " + busy
	}
	return ""
}

// errJob ends the test of a slot whose agent gets a job.
var errJob = errors.New("a job came")

// step is a part of the test of a slot.
type step struct {
	doing string
	try   func(context.Context) ([]Check, error)
}

// try runs all steps in one slot. A job that comes in the meantime goes first: the slot's service ends
// what is tried, and what did not hold may be the job's doing.
func (s *trial) try(ctx context.Context) error {
	if s.t.Quick {
		return s.steps(ctx, []step{{"running a container", s.plain}})
	}
	return s.steps(ctx, []step{
		{"comparing it with the plan", s.planned},
		{"checking its agent", s.agent},
		{"opening devices", s.devices},
		{"running containers that try to escape", s.containers},
	})
}

func (s *trial) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		s.t.Progress(s.plan.Name, step.doing)
		checks, err := step.try(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, errJob) {
			checks = append(checks, Check{Group: "selftest", Tried: step.doing, Saw: err.Error(), Do: s.hint()})
		}
		failed := slices.ContainsFunc(checks, func(c Check) bool { return !c.Held })
		if errors.Is(err, errJob) || failed && s.hasJob() {
			s.report.Skipped = "a job came and goes first; run kbnode selftest again when it is done"
			return nil
		}
		s.report.Checks = append(s.report.Checks, checks...)
	}
	return nil
}

// hasJob reports whether the slot's agent runs a job now.
func (s *trial) hasJob() bool {
	if s.state.Agent.Cgroup == "" {
		return false
	}
	job, err := slot.CurrentJob("/", s.state.Agent.Cgroup, s.state.Agent.MainPID)
	return err == nil && job != nil
}

// hint returns what to type if nothing better is known.
func (s *trial) hint() string {
	k := s.plan.Index
	return fmt.Sprintf("sudo kbnode reconcile && sudo systemctl restart %s; until it holds, keep jobs away: sudo systemctl stop %s", plan.GuardUnit(k), plan.AgentUnit(k))
}

// planned returns the differences that kbnode reconcile would fix.
func (s *trial) planned(context.Context) ([]Check, error) {
	return comparison(s.t.Changes, s.plan.Index, "the slot's files, units and limits"), nil
}

func comparison(changes []reconcile.Change, slot int, what string) []Check {
	t := &tries{group: "plan", do: "sudo kbnode reconcile"}
	for _, c := range changes {
		if c.Slot == slot && c.Deferred == "" {
			t.add(false, c.Subject, "not as planned: "+c.String())
		}
	}
	if len(t.checks) == 0 {
		t.add(true, what, "as planned")
	}
	return t.checks
}
