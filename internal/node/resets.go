package node

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// resetTime is how long the daemon has to read the operator's message: a pass may be under way,
// and a GPU may not answer.
const resetTime = 2 * time.Minute

// ReportResets tells the daemon that the GPUs of slots were reset by hand, and waits until it has
// judged them again.
func (n *Node) ReportResets(ctx context.Context, host *reconcile.Host, selected Selection) error {
	if err := n.report(ctx, host, selected, false); err != nil {
		return err
	}
	return n.awaitReports(ctx, host)
}

// ReturnGPUs likewise tells the daemon that the slots' GPUs may take jobs despite their repeated faults. It
// does nothing if that keeps none of the node's from jobs, for all slots together, or for one that an operator drained: then
// resume ends a repair, and which GPU may come back is another decision.
func (n *Node) ReturnGPUs(ctx context.Context, host *reconcile.Host, selected Selection) error {
	if h, err := daemon.ReadHealth(n.Root); selected.All || err != nil || !slices.ContainsFunc(h.Verdicts, repeated) {
		return nil //nolint:nilerr // the daemon writes it again; a drain is taken back without it
	}
	if err := n.report(ctx, host, selected, true); err != nil {
		return err
	}
	return n.awaitReports(ctx, host)
}

func repeated(v health.Verdict) bool { return v.Check == health.CheckRepeats }

func (n *Node) awaitReports(ctx context.Context, host *reconcile.Host) error {
	if !daemon.ReportPending(n.Root) {
		return nil
	}
	// The daemon then reads everything again, including the GPUs.
	if err := host.Systemd.Kill(ctx, plan.NodeService, false, syscall.SIGHUP); err != nil {
		return err
	}
	n.say("waiting for the daemon to check the GPUs")
	for end := time.Now().Add(resetTime); daemon.ReportPending(n.Root); {
		if time.Now().After(end) {
			return fmt.Errorf("the daemon has not checked the GPUs within %s, and will when it can; journalctl -u %s shows why", resetTime, plan.NodeService)
		}
		if err := limit.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// report leaves the message for the daemon, which must be running.
func (n *Node) report(ctx context.Context, host *reconcile.Host, selected Selection, returned bool) error {
	now, err := signals.Now()
	if err != nil {
		return err
	}
	release, err := n.Lock(ctx, host)
	if err != nil {
		return err
	}
	defer release()
	if _, err := n.refreshOrRecall(ctx, host, n.Refresh); err != nil {
		return err
	}
	if !selected.All && rebootPending(n.Drains) {
		return errRebootWaits
	}
	all := n.Plan.Slots
	if returned { // which resume accepts
		all = slices.Concat(all, slotless(n.Plan, n.Drains))
	}
	slots, err := selected.In(all)
	if err != nil {
		return err
	}
	gpus, happened, err := n.reportOf(slots, returned)
	if err != nil || len(gpus) == 0 {
		return err
	}
	if err := needsDaemon(ctx, host, "checks the GPUs"); err != nil {
		return err
	}
	if err := (events.Log{File: filepath.Join(n.Root, events.Path)}).Add(happened...); err != nil {
		n.Log.Warn("event not recorded", "err", err)
	}
	if returned {
		return daemon.ReportReturn(n.Root, gpus, now.Up)
	}
	return daemon.ReportReset(n.Root, gpus, now.Up)
}

// reportOf returns the GPUs of slots that were reset or, if returned is true, that stay out for their faults.
func (n *Node) reportOf(slots []plan.Slot, returned bool) (gpus []string, happened []events.Event, err error) {
	if !returned {
		for _, sl := range slots {
			for _, g := range sl.GPUs {
				gpus = append(gpus, cmp.Or(g.UUID, g.PCI))
			}
			happened = append(happened, events.Event{Kind: "reset", Slot: sl.Index, By: plan.ByOperator, Text: "an operator says that the GPU of " + sl.Name + " was reset"})
		}
		return gpus, happened, nil
	}
	h, err := daemon.ReadHealth(n.Root)
	for _, sl := range slots {
		if slices.ContainsFunc(sl.Drains, func(d plan.Drain) bool { return d.By == plan.ByOperator }) {
			continue
		}
		for _, v := range h.Verdicts {
			if repeated(v) && slices.Contains(v.Slots, sl.Index) {
				gpus = append(gpus, v.GPU)
				happened = append(happened, events.Event{Kind: "resume", Slot: sl.Index, By: plan.ByOperator, Text: "an operator returns the GPU of " + sl.Name + " to service despite its faults"})
			}
		}
	}
	return gpus, happened, err
}
