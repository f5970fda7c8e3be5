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
	starting := false
	var free, doubtful, full []plan.Slot // with the old agent: idle, away, and with a job
	for _, sl := range u.plan.Slots {
		k, ss := sl.Index, s.Slot(sl.Index)
		switch on := slices.Contains(roll.Slots, k); {
		case slices.Contains(roll.Registered, k):
		case !sl.Serves() || len(ss.Parked) > 0:
			u.say(k, "takes no jobs now; it gets the new agent when it does")
		case !on && (ss.Busy() != "" || ss.Agent.Stopping()):
			full = append(full, sl)
		case !on && ss.Registered:
			free = append(free, sl)
		case !on: // a failure may be the slot's or the version's
			doubtful = append(doubtful, sl)
		case u.current(ss) && ss.Registered:
			u.note(k, "%s runs %s, which has registered", sl.Name, u.Name(roll.To))
			u.say(k, "registered with "+u.Name(roll.To))
			roll.Registered = append(slices.Clone(roll.Registered), k)
		case ss.Agent.Stopping() || waits(k):
			busy = append(busy, sl)
			delete(u.since, k)
			u.say(k, "changes when its job is done")
		default:
			starting = true
			if u.since[k].IsZero() {
				u.since[k] = time.Now()
				u.say(k, "starts "+u.Name(roll.To))
			}
			if time.Since(u.since[k]) > roll.Timeout {
				return nil, nil, u.back(ctx, sl)
			}
		}
	}
	free = append(free, doubtful...)
	var more []plan.Slot
	switch {
	case starting: // one at a time
	case len(free) > 0:
		more = free[:1]
	case len(roll.Registered) > 0: // the version works
		more = full
	case len(busy) == 0 && len(full) > 0:
		more = full[:1]
	}
	then := u.agents
	switch {
	case len(more) > 0 || len(roll.Registered) > known:
		for _, sl := range more {
			roll.Slots = append(slices.Clone(roll.Slots), sl.Index)
		}
		then.Roll = &roll
		return &then, nil, nil
	case starting:
		return nil, nil, nil
	case len(busy) > 0:
		return nil, append(busy, full...), nil
	}
	u.note(-1, "all slots run %s", u.Name(roll.To))
	then.Version, then.Roll = roll.To, nil
	return &then, nil, nil
}

// current reports whether a slot's agent was started as it is planned now.
func (u *Upgrade) current(ss slot.State) bool {
	i := slices.IndexFunc(u.plan.Units, func(w plan.Unit) bool { return w.Name == ss.Agent.Name })
	return i >= 0 && ss.Agent.Generation == u.plan.Units[i].Generation
}
