package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// pending reports whether an agent of these slots could be changed now.
func pending(p *plan.Plan, s *State, slots []int) bool {
	return slices.ContainsFunc(Diff(p, s), func(c Change) bool {
		return c.Deferred == "" && isAgent(c.Subject, c.Slot) && slices.Contains(slots, c.Slot)
	})
}

// step checks how far the slots are. next is the state to record, nil to wait; busy is
// the slots whose jobs it waits for, if it only waits for jobs.
func (u *Upgrade) step(ctx context.Context, s *State) (next *plan.Agents, busy []plan.Slot, err error) {
	roll, known := *u.agents.Roll, len(u.agents.Roll.Registered)
	changes := Diff(u.plan, s)
	waits := func(k int) bool { // for a job, its own or a neighbor's
		return slices.ContainsFunc(changes, func(c Change) bool { return c.Deferred != "" && isAgent(c.Subject, k) })
	}
	var starting, free, doubtful, full []plan.Slot
	for _, sl := range u.plan.Slots {
		ss := s.Slot(sl.Index)
		switch on := slices.Contains(roll.Slots, sl.Index); {
		case slices.Contains(roll.Registered, sl.Index):
		case !sl.Serves() || len(ss.Parked) > 0:
			u.say(sl.Index, "takes no jobs now; it gets the new agent when it does")
		case !on && (ss.Busy() != "" || ss.Agent.Stopping()):
			full = append(full, sl)
		case !on && ss.Registered:
			free = append(free, sl)
		case !on:
			doubtful = append(doubtful, sl) // its agent is away: a failure may be the slot's or the version's
		case u.current(ss) && ss.Registered:
			u.note(sl.Index, "%s runs %s, which has registered", sl.Name, u.Name(roll.To))
			u.say(sl.Index, "registered with "+u.Name(roll.To))
			roll.Registered = append(slices.Clone(roll.Registered), sl.Index)
		case ss.Agent.Stopping() || waits(sl.Index):
			busy = append(busy, sl)
			delete(u.since, sl.Index)
			u.say(sl.Index, "changes when its job is done")
		default:
			starting = append(starting, sl)
		}
	}
	for _, sl := range starting {
		if u.since[sl.Index].IsZero() {
			u.since[sl.Index] = time.Now()
			u.say(sl.Index, "starts "+u.Name(roll.To))
		}
		if time.Since(u.since[sl.Index]) > roll.Timeout {
			return nil, nil, u.back(ctx, sl)
		}
	}
	free = append(free, doubtful...)
	var more []plan.Slot
	switch {
	case len(starting) > 0: // one at a time
	case len(free) > 0:
		more = free[:1]
	case len(roll.Registered) > 0: // the version works
		more = full
	case len(busy) == 0 && len(full) > 0:
		more = full[:1]
	}
	switch {
	case len(more) > 0 || len(roll.Registered) > known:
		return u.with(roll, more), nil, nil
	case len(starting) > 0:
		return nil, nil, nil
	case len(busy) > 0:
		return nil, append(busy, full...), nil
	}
	u.note(-1, "all slots run %s", u.Name(roll.To))
	done := u.agents
	done.Version, done.Roll = roll.To, nil
	return &done, nil, nil
}

// with returns the state in which more slots run the new version.
func (u *Upgrade) with(roll plan.AgentRoll, more []plan.Slot) *plan.Agents {
	roll.Slots = slices.Clone(roll.Slots)
	for _, sl := range more {
		roll.Slots = append(roll.Slots, sl.Index)
	}
	next := u.agents
	next.Roll = &roll
	return &next
}

// current reports whether a slot's agent was started as it is planned now.
func (u *Upgrade) current(ss slot.State) bool {
	i := slices.IndexFunc(u.plan.Units, func(w plan.Unit) bool { return w.Name == ss.Agent.Name })
	return i >= 0 && ss.Agent.Generation == u.plan.Units[i].Generation
}
