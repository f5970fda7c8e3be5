package selftest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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

	mu     sync.Mutex
	report SlotReport
}

func (s *trial) add(checks ...Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Checks = append(s.report.Checks, checks...)
}

// away returns why a slot is not tried, or "" if it is.
func (s *trial) away() string {
	if why := s.state.Away(s.plan); why != "" {
		return why
	}
	if busy := s.state.Busy(); busy != "" {
		return "it is busy with " + busy
	}
	return ""
}

// errJob ends the test of a slot whose agent gets a job.
var errJob = errors.New("a job started")

// try runs all steps in one slot. A job that comes in the meantime goes first and ends the
// current step.
func (s *trial) try(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go s.watch(ctx, stop)
	defer s.tidy(ctx)
	type step struct {
		doing string
		try   func(context.Context) ([]Check, error)
	}
	steps := []step{
		{"comparing it with the plan", s.planned},
		{"checking its agent", s.agent},
		{"trying commands on the host", s.host},
		{"sending hostile requests", s.requests},
		{"running containers that try to escape", s.containers},
	}
	if s.t.Quick {
		steps = []step{{"running a container", s.plain}}
	}
	for _, step := range steps {
		s.t.Progress(s.plan.Name, step.doing)
		checks, err := step.try(ctx)
		if errors.Is(context.Cause(ctx), errJob) {
			s.mu.Lock()
			s.report.Skipped = "a job started and goes first; run kbnode selftest again when it is done"
			s.mu.Unlock()
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.add(checks...)
		if err != nil {
			s.add(Check{Group: "selftest", Tried: step.doing, Saw: err.Error(), Do: s.hint()})
		}
	}
	return nil
}

// watch ends the test when the slot's agent has a job.
func (s *trial) watch(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(jobPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.hasJob() {
			stop(errJob)
			return
		}
	}
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
	var checks []Check
	for _, c := range changes {
		if c.Slot == slot && c.Deferred == "" {
			checks = append(checks, Check{Group: "plan", Tried: c.Subject, Saw: "not as planned: " + c.String(), Do: "sudo kbnode reconcile"})
		}
	}
	if len(checks) == 0 {
		checks = append(checks, Check{Group: "plan", Tried: what, Saw: "as planned", Held: true})
	}
	return checks
}
