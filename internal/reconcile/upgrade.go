package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Upgrade changes the agents of a node to another version, slot by slot, and back if one
// does not register. It records each step in plan.AgentsPath first: wherever it is
// interrupted, each slot has an agent, and the next run continues. It ends no job: a busy
// slot changes when its job is done.
type Upgrade struct {
	Host *Host
	// Lock keeps others from changing the node.
	Lock func(ctx context.Context) (release func(), err error)
	// Plan reads the machine again and makes its plan, while the lock is held.
	Plan func(ctx context.Context) (*plan.Plan, error)
	// Name returns what people call a version, and Why the last words of an agent.
	Name func(version string) string
	Why  func(ctx context.Context, slot plan.Slot) string
	// Say is called with what happens, in words; slot is -1 for the node.
	Say    func(slot int, text string)
	Events events.Log

	agents   plan.Agents
	plan     *plan.Plan
	since    map[int]time.Time // when a slot was first seen free to run the new agent
	reported map[int]string
	broken   map[int]error // systemd's errors for agents that it was to start
}

// upgradePause is the time between two looks at agents that start.
const upgradePause = time.Second

// LockUpgrade keeps every other upgrade of agents away. It is held in addition to the
// node's lock, which is only taken for each change.
func (h *Host) LockUpgrade() (release func(), err error) { return h.lock("/run/kbnode-upgrade.lock") }

// ReadAgents reads which agents slots run. It returns the zero value for a node without a
// choice.
func (h *Host) ReadAgents() (plan.Agents, error) {
	return readStored(h, plan.AgentsPath, "agents", plan.ParseAgents)
}

// WriteAgents saves which agents slots run. The caller must hold the node's lock. The
// next Apply changes the machine itself.
func (h *Host) WriteAgents(a plan.Agents) error {
	text, err := plan.RenderAgents(a)
	if err != nil {
		return err
	}
	return h.Store(plan.AgentsPath, text)
}

// Begin records that slots are to change to a version whose release is there; "" is the
// installed agent. Run does it.
func (u *Upgrade) Begin(ctx context.Context, to string, release *plan.AgentRelease, timeout time.Duration) error {
	unlock, err := u.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	agents, err := u.Host.ReadAgents()
	if err != nil {
		return err
	}
	next := agents
	if release != nil {
		next.Releases = append(slices.DeleteFunc(slices.Clone(agents.Releases), func(r plan.AgentRelease) bool { return r.Version == release.Version }), *release)
	}
	next = next.Begin(to, timeout)
	if reflect.DeepEqual(next, agents) {
		return nil
	}
	if err := u.Host.WriteAgents(next); err != nil {
		return err
	}
	if next.Roll != nil && (agents.Roll == nil || agents.Roll.To != to) {
		u.note(-1, "agents change from %s to %s", u.Name(next.Version), u.Name(to))
	} else if next.Roll == nil && agents.Roll != nil {
		u.note(-1, "agents go back to %s from %s", u.Name(next.Version), u.Name(agents.Roll.To))
	}
	return nil
}

// Run continues what was begun until it is done, or until only slots are left that run
// jobs, which it returns; with wait it waits for those. It is an error if all slots went back.
func (u *Upgrade) Run(ctx context.Context, wait bool) (busy []plan.Slot, err error) {
	u.since, u.reported, u.broken = map[int]time.Time{}, map[int]string{}, map[int]error{}
	if u.agents, err = u.Host.ReadAgents(); err != nil {
		return nil, err
	}
	if err := u.converge(ctx, nil); err != nil {
		return nil, err
	}
	for u.agents.Roll != nil {
		s, err := u.Host.Observe(ctx, u.plan)
		if err != nil {
			return nil, err
		}
		next, left, err := u.step(ctx, s)
		switch {
		case err != nil:
		case next != nil:
			err = u.converge(ctx, next)
		case len(left) > 0 && !wait && !pending(u.plan, s, u.agents.Roll.Slots):
			return left, nil
		default:
			err = u.follow(ctx, s, u.agents.Roll.Slots)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, u.tidy(ctx)
}

// follow changes the agents of slots that can change now, and waits a moment.
func (u *Upgrade) follow(ctx context.Context, s *State, slots []int) error {
	if pending(u.plan, s, slots) {
		if err := u.converge(ctx, nil); err != nil {
			return err
		}
	}
	return u.Host.sleep(ctx, upgradePause)
}

// back makes all slots run the previous version, and waits until those that have tried the
// other one have registered again, except those that are finishing a job.
func (u *Upgrade) back(ctx context.Context, bad plan.Slot) error {
	roll, previous := *u.agents.Roll, u.Name(u.agents.Version)
	why := "no sign of it within " + roll.Timeout.String()
	if err := u.broken[bad.Index]; err != nil {
		why = err.Error()
	} else if said := u.Why(ctx, bad); said != "" {
		why += ": " + said
	}
	text := fmt.Sprintf("%s did not register with %s: %s; all slots ", bad.Name, u.Name(roll.To), why)
	u.note(bad.Index, "%sgo back to %s", text, previous)
	text += "are back at " + previous
	next := u.agents
	next.Roll = nil
	err := u.converge(ctx, &next)
	var missing []string
	for end := time.Now().Add(roll.Timeout); err == nil; {
		var s *State
		if s, err = u.Host.Observe(ctx, u.plan); err != nil {
			break
		}
		missing = nil
		for _, sl := range u.plan.Slots {
			ss := s.Slot(sl.Index)
			there := u.current(ss) && ss.Registered
			if slices.Contains(roll.Slots, sl.Index) && sl.Serves() && ss.Busy() == "" && !there {
				missing = append(missing, sl.Name)
			}
		}
		if len(missing) == 0 || time.Now().After(end) {
			err = u.tidy(ctx)
			break
		}
		err = u.follow(ctx, s, roll.Slots)
	}
	if len(missing) > 0 {
		text += ", and " + strings.Join(missing, ", ") + " have not registered with that yet; kbnode status shows them"
	}
	return errors.Join(errors.New(text), err)
}

// converge saves next, if not nil, and makes the node match it.
func (u *Upgrade) converge(ctx context.Context, next *plan.Agents) error {
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if next != nil {
		if err := u.Host.WriteAgents(*next); err != nil {
			return err
		}
		u.agents = *next
	}
	if u.plan, err = u.Plan(ctx); err != nil {
		return err
	}
	s, err := u.Host.Observe(ctx, u.plan)
	if err != nil {
		return err
	}
	_, err = u.Host.Apply(ctx, u.plan, s, Diff(u.plan, s))
	// The upgrade watches for agents of the new version that do not start, and a slot
	// that was broken before holds up no other.
	return EachSlot(err, func(slot int, err error) { u.broken[slot] = err })
}

// lock keeps others from changing the node. The error says so if someone has decided otherwise.
func (u *Upgrade) lock(ctx context.Context) (unlock func(), err error) {
	if unlock, err = u.Lock(ctx); err != nil {
		return nil, err
	}
	agents, err := u.Host.ReadAgents()
	if err == nil && !reflect.DeepEqual(agents, u.agents) {
		err = errors.New("another command has changed the slots' agent in the meantime; sudo kbnode status shows what is running")
	}
	if err != nil {
		unlock()
	}
	return unlock, err
}

// tidy removes the releases that no slot runs or is to run, and directories of releases
// that were never used. If an agent is not yet what it should be, it leaves them to the
// next run.
func (u *Upgrade) tidy(ctx context.Context) error {
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := u.Host.Observe(ctx, u.plan)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(s.Slots, func(ss slot.State) bool { return ss.Agent.Running() && (ss.Agent.Stopping() || !u.current(ss)) }) {
		return nil
	}
	if used, unused := u.agents.Used(); unused {
		next := u.agents
		next.Releases = used
		if err := u.Host.WriteAgents(next); err != nil {
			return err
		}
		u.agents = next
	}
	entries, err := os.ReadDir(u.Host.path(plan.AgentsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !u.agents.Has(e.Name()) {
			err = errors.Join(err, u.Host.remove(path.Join(plan.AgentsDir, e.Name()), true))
		}
	}
	if len(u.agents.Releases) == 0 {
		err = errors.Join(err, u.Host.remove(plan.AgentsDir, false))
	}
	return wrap(err, "remove unused agents")
}

// say reports something about a slot once.
func (u *Upgrade) say(slot int, text string) {
	if u.Say != nil && u.reported[slot] != text {
		u.Say(slot, text)
		u.reported[slot] = text
	}
}

// note records an event. A failure to record it is no reason to stop.
func (u *Upgrade) note(slot int, format string, args ...any) {
	e := events.Event{Kind: "upgrade", Slot: slot, Text: fmt.Sprintf(format, args...)}
	if err := u.Events.Add(e); err != nil {
		u.Host.log().Warn("event not recorded", "err", err)
	}
}

// DropRelease removes a release that no slot runs, after it was refused.
func (h *Host) DropRelease(version string) error {
	return h.remove(filepath.Dir(plan.AgentBinary(version)), true)
}
