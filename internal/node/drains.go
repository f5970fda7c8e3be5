package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// containerPath is what systemd writes if it runs in a container. The kernel's boot ID is then that of the container's host.
const containerPath = "/run/systemd/container"

// Drain keeps new jobs off the selected slots, as the Reason, Until and Reboot of a drain say, and changes the node accordingly. It
// returns the new plan and those slots. warn hears of failures in other slots, of events that are not
// recorded, and why the node cannot be planned: then only the slots' agents are changed.
func (n *Node) Drain(ctx context.Context, host *reconcile.Host, selected Selection, why plan.Drain, warn func(error)) (*plan.Plan, []plan.Slot, error) {
	since := time.Now().UTC().Truncate(time.Second)
	if why.Reboot != "" {
		if err := n.CheckReboot(); err != nil {
			return nil, nil, err
		}
	}
	if why.Reboot != "" || !why.Until.IsZero() {
		if err := needsDaemon(ctx, host, "ends the drain"); err != nil {
			return nil, nil, err
		}
	}
	slots, err := n.changeDrains(ctx, host, "drain", selected, func(drains []plan.Drain, slot int) []plan.Drain {
		why.Slot, why.By, why.Since = slot, plan.ByOperator, since
		return plan.AddDrain(drains, why)
	}, warn)
	return n.Plan, slots, err
}

// CheckReboot returns why a Drain cannot have a Reboot.
func (n *Node) CheckReboot() error {
	if kind, err := n.ReadFile(containerPath); err == nil {
		return config.BadInput("this is a container (%s), whose reboot kbnode cannot tell from none, so it would reboot again; type sudo kbnode drain --all --wait, and reboot it then", text.Line(strings.TrimSpace(string(kind)), 40))
	}
	return nil
}

// Resume takes back Drain. Drained slots that are no longer of the plan can be selected, too; what it
// returns of them has only a name.
func (n *Node) Resume(ctx context.Context, host *reconcile.Host, selected Selection, warn func(error)) ([]plan.Slot, error) {
	boot := bootNow()
	return n.changeDrains(ctx, host, "resume", selected, func(drains []plan.Drain, slot int) []plan.Drain {
		return plan.Resume(drains, slot, boot)
	}, warn)
}

func (n *Node) changeDrains(ctx context.Context, host *reconcile.Host, kind string, selected Selection, change func([]plan.Drain, int) []plan.Drain, warn func(error)) ([]plan.Slot, error) {
	release, err := n.Lock(ctx, host)
	if err != nil {
		return nil, err
	}
	defer release()
	why, err := n.refreshOrRecall(ctx, host, n.Refresh)
	if err != nil {
		return nil, err
	}
	if rebootPending(n.Drains) && (kind == "drain" || !selected.All) {
		return nil, errRebootWaits
	}
	var unplanned []plan.Slot // drain does not know them
	if kind == "resume" {
		unplanned = slotless(n.Plan, n.Drains)
	}
	slots, err := selected.In(slices.Concat(n.Plan.Slots, unplanned))
	if err != nil {
		return nil, err
	}
	var happened []events.Event
	drains := n.Drains
	for _, sl := range slots {
		before := drains
		drains = change(drains, sl.Index)
		if !slices.Equal(drains, before) {
			happened = append(happened, events.Event{Kind: kind, Slot: sl.Index, By: plan.ByOperator, Text: drainText(kind, drains, sl.Index)})
		}
	}
	if !slices.Equal(drains, n.Drains) {
		if err := host.WriteDrains(drains); err != nil {
			return nil, err
		}
	}
	if err := (events.Log{File: filepath.Join(n.Root, events.Path)}).Add(happened...); err != nil {
		warn(err)
	}
	if why != nil {
		warn(fmt.Errorf("%s; until that is fixed, only agents are stopped and started", oneLine(why)))
		n.Drains = drains
		n.showDrains()
		if slots, err = selected.In(slices.Concat(n.Plan.Slots, unplanned)); err != nil {
			return nil, err
		}
		return slots, switchAgents(ctx, host, slices.DeleteFunc(slices.Clone(slots), func(s plan.Slot) bool { return s.User == "" }))
	}
	if err := n.MakePlan(); err != nil {
		return nil, err
	}
	_, err = Converge(ctx, host, n.Plan)
	var errs []error
	rest := reconcile.EachSlot(err, func(k int, err error) {
		if slices.ContainsFunc(slots, func(s plan.Slot) bool { return s.Index == k }) {
			errs = append(errs, err)
		} else {
			warn(err)
		}
	})
	if err := errors.Join(append(errs, rest)...); err != nil {
		return nil, err
	}
	return selected.In(slices.Concat(n.Plan.Slots, unplanned))
}

var errRebootWaits = config.BadInput("a reboot waits for all slots; type sudo kbnode resume --all first, which cancels it")

// RebootWaits reports whether the stored drains ask for a reboot, also after a Drain that failed.
func RebootWaits(host *reconcile.Host) bool {
	drains, err := host.ReadDrains()
	return err == nil && rebootPending(drains)
}

// needsDaemon returns an error if the daemon, which does something, does not run.
func needsDaemon(ctx context.Context, host *reconcile.Host, does string) error {
	units, err := host.Systemd.Units(ctx, plan.NodeService)
	if err == nil && units[0].Active != "active" {
		err = fmt.Errorf("the daemon, which %s, does not run; type sudo systemctl start %s", does, plan.NodeService)
	}
	return err
}

// bootNow returns the kernel's ID of this boot, or "" if it cannot be read.
func bootNow() string {
	now, _ := signals.Now() // without an error, it has one
	return now.Boot
}

// rebootPending reports whether an operator asked for a reboot in this boot.
func rebootPending(drains []plan.Drain) bool {
	boot := bootNow()
	return slices.ContainsFunc(drains, func(d plan.Drain) bool { return d.RebootWaits(boot) })
}

// slotless returns drains without a slot in the plan as slots that have only a name.
func slotless(p *plan.Plan, drains []plan.Drain) []plan.Slot {
	var unplanned []plan.Slot
	for _, d := range plan.SlotlessDrains(p.Slots, drains) {
		unplanned = append(unplanned, plan.Slot{Index: d.Slot, Name: plan.SlotName(d.Slot)})
	}
	return unplanned
}

func drainText(command string, drains []plan.Drain, slot int) string {
	name := plan.SlotName(slot)
	i := slices.IndexFunc(drains, func(d plan.Drain) bool { return d.Slot == slot && d.By == plan.ByOperator })
	if command == "resume" && i < 0 {
		return name + " may take jobs again"
	}
	return name + " is " + drains[i].String()
}
