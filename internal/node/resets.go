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

// resetTime is how long the daemon has to judge by the operator's message: a pass may be under way, and the driver of a sick GPU
// may let each reading of the node last minutes.
const resetTime = 6 * time.Minute

// ReportResets tells the daemon that the GPUs of slots were reset by hand, and waits until it has
// judged them again.
func (n *Node) ReportResets(ctx context.Context, host *reconcile.Host, selected Selection) error {
	if err := n.report(ctx, host, selected, nil); err != nil {
		return err
	}
	return n.awaitReports(ctx, host)
}

// ReturnGPUs likewise tells the daemon that the slots' GPUs may take jobs despite their repeated faults, or else without the
// evaluation that they owe; repaired says that this one is to be tried again. It does nothing if that keeps none of the node's
// from jobs, for all slots together, or for one that an operator drained: then resume ends a repair, and which GPU may come
// back is another decision.
func (n *Node) ReturnGPUs(ctx context.Context, host *reconcile.Host, selected Selection, repaired bool) error {
	checks := []string{health.CheckRepeats, health.CheckProof}
	if repaired {
		checks = checks[:1]
	}
	h, err := daemon.ReadHealth(n.Root)
	if selected.All || err != nil || !slices.ContainsFunc(h.Verdicts, func(v health.Verdict) bool { return slices.Contains(checks, v.Check) }) {
		return nil //nolint:nilerr // the daemon writes it again; a drain is taken back without it
	}
	if err := n.report(ctx, host, selected, checks); err != nil {
		return err
	}
	return n.awaitReports(ctx, host)
}

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

// report leaves the message for the daemon, which must be running: the GPUs are returned from the first of the checks that
// keeps them from jobs, or were reset if there are no checks.
func (n *Node) report(ctx context.Context, host *reconcile.Host, selected Selection, checks []string) error {
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
	if checks != nil { // which resume accepts
		all = slices.Concat(all, slotless(n.Plan, n.Drains))
	}
	slots, err := selected.In(all)
	if err != nil {
		return err
	}
	gpus, happened, err := n.reportOf(slots, checks)
	if err != nil || len(gpus) == 0 {
		return err
	}
	if err := needsDaemon(ctx, host, "checks the GPUs"); err != nil {
		return err
	}
	if err := (events.Log{File: filepath.Join(n.Root, events.Path)}).Add(happened...); err != nil {
		n.Log.Warn("event not recorded", "err", err)
	}
	if checks != nil {
		return daemon.ReportReturn(n.Root, gpus, now.Up)
	}
	return daemon.ReportReset(n.Root, gpus, now.Up)
}

// reportOf returns the GPUs of slots that report is about.
func (n *Node) reportOf(slots []plan.Slot, checks []string) (gpus []string, happened []events.Event, err error) {
	if checks == nil {
		for _, sl := range slots {
			for _, g := range sl.GPUs {
				gpus = append(gpus, cmp.Or(g.UUID, g.PCI))
			}
			happened = append(happened, events.Event{Kind: "reset", Slot: sl.Index, By: plan.ByOperator, Text: "an operator says that the GPU of " + sl.Name + " was reset"})
		}
		return gpus, happened, nil
	}
	despite := map[string]string{health.CheckRepeats: "despite its faults", health.CheckProof: "without an evaluation"}
	h, err := daemon.ReadHealth(n.Root)
	for _, sl := range slots {
		if slices.ContainsFunc(sl.Drains, func(d plan.Drain) bool { return d.By == plan.ByOperator }) {
			continue
		}
		for _, check := range checks {
			before := len(gpus)
			for _, v := range h.Verdicts {
				if v.Check == check && slices.Contains(v.Slots, sl.Index) {
					gpus = append(gpus, v.GPU)
					happened = append(happened, events.Event{Kind: "resume", Slot: sl.Index, By: plan.ByOperator, Text: "an operator returns the GPU of " + sl.Name + " to service " + despite[check]})
				}
			}
			if len(gpus) > before {
				break
			}
		}
	}
	return gpus, happened, err
}
