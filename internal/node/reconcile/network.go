package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/firewall"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// NetworkState is the state of the slots' networks and of the rules that keep them apart.
type NetworkState struct {
	Rules    firewall.State `json:"rules"`              // "" if this user may not see them
	Networks []string       `json:"networks,omitempty"` // kbnode's networks; clearing a slot makes its own
}

// Network reads and changes the networks of a machine's slots.
type Network interface {
	Observe(ctx context.Context) (NetworkState, error)
	// Protect writes the firewall rules for the slots that have users.
	Protect() error
	// Unprotect removes the rules.
	Unprotect() error
	// Remove removes a network from the engine.
	Remove(ctx context.Context, name string) error
}

// SystemNetwork is the network of the machine that kbnode runs on.
type SystemNetwork struct{ Socket string } // the Docker engine's

// networkTime bounds the calls to the engine: one that hangs delays a pass by as much.
const networkTime = 10 * time.Second

// Observe implements Network. An engine that does not run has no networks that anyone could
// use, and one that was removed took them along. If there is an error, the state still
// has the rules.
func (s SystemNetwork) Observe(ctx context.Context) (NetworkState, error) {
	var state NetworkState
	node, err := firewall.Read("/")
	if err == nil {
		state.Rules, err = node.State()
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return state, nil
	case err != nil:
		state.Rules = firewall.Altered // writing them will show what is wrong
	}
	engine, err := docker.New(s.Socket)
	if err != nil {
		return state, err
	}
	defer func() { _ = engine.Close() }()
	ctx, cancel := context.WithTimeout(ctx, networkTime)
	defer cancel()
	state.Networks, err = engine.Networks(ctx, slot.Label)
	if errors.Is(err, docker.ErrAbsent) || errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return state, err
}

// Protect implements Network.
func (SystemNetwork) Protect() error {
	node, err := firewall.Read("/")
	if err != nil {
		return err
	}
	return node.Ensure()
}

// Unprotect implements Network.
func (SystemNetwork) Unprotect() error { return firewall.Remove() }

const (
	detachTime = 15 * time.Second // for the engine to let go of ended containers
	detachPoll = 500 * time.Millisecond
)

// Remove implements Network.
func (s SystemNetwork) Remove(ctx context.Context, name string) error {
	engine, err := docker.New(s.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	for deadline := time.Now().Add(detachTime); ; {
		err := engine.RemoveNetwork(ctx, name)
		if err == nil || errors.Is(err, docker.ErrAbsent) || time.Now().After(deadline) {
			return err
		}
		if limit.Sleep(ctx, detachPoll) != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

func (o *observer) network(ctx context.Context) error {
	if o.h.Network == nil {
		return nil
	}
	state, err := o.h.Network.Observe(ctx)
	if err != nil {
		err = fmt.Errorf("check the slots' networks: %w", err)
		if empty(o.p) {
			return err // an uninstall must know what is left
		}
		// Which networks are left over can wait; other differences must not.
		o.s.Warnings = append(o.s.Warnings, err.Error())
	}
	o.s.network = &state
	return nil
}

// rulesName is what messages call the firewall rules.
const rulesName = "inet " + firewall.Name

// networksGone removes the networks of unplanned slots, after their containers are gone and
// before anything that a later run would need.
func (d *differ) staleNetworks() {
	if d.s.network == nil {
		return
	}
	names := slices.Clone(d.s.network.Networks)
	slices.Sort(names)
	for _, name := range names {
		k, err := strconv.Atoi(strings.TrimPrefix(name, strings.TrimSuffix(plan.NetworkName(0), "0")))
		if err != nil || k < 0 || plan.NetworkName(k) != name {
			continue // someone else's, whatever its label says
		}
		if _, planned := d.wantUnits[plan.JobSocket(k)]; !planned {
			d.add(phaseDelete, Change{Kind: DelNet, Subject: name, Slot: k})
		}
	}
	if d.uninstall && d.s.network.Rules != firewall.Absent && d.s.network.Rules != "" {
		d.add(phaseDelete, Change{Kind: Unprotect, Subject: rulesName, Slot: -1})
	}
}

// protect writes the firewall rules if they are not as they should be, or soon will not be:
// they name the slots' bridges and what the slots' policies let them reach.
func (d *differ) protect() {
	if d.s.network == nil || d.uninstall || d.s.network.Rules == "" {
		return
	}
	why := ""
	switch {
	case d.s.network.Rules != firewall.Intact:
		why = "the firewall rules between jobs are " + string(d.s.network.Rules)
	case slices.ContainsFunc(d.out, func(c Change) bool { return (c.Kind == AddUser || c.Kind == DelUser) && c.Deferred == "" }):
		why = "the slots' users change"
	case slices.ContainsFunc(d.out, func(c Change) bool {
		return c.Slot >= 0 && c.Subject == plan.SlotPolicyPath(c.Slot) && c.Kind != Chmod && c.Deferred == ""
	}):
		why = "the slots' policies change"
	default:
		return
	}
	d.add(phaseSlice, Change{Kind: Protect, Subject: rulesName, Slot: -1, Why: why})
}

func (a *applier) network(ctx context.Context, c Change) error {
	if err := a.h.callStep(string(c.Kind), c.Subject); err != nil {
		return err
	}
	switch c.Kind {
	case DelNet:
		return a.h.Network.Remove(ctx, c.Subject)
	case Unprotect:
		return a.h.Network.Unprotect()
	default:
		return a.h.Network.Protect()
	}
}
