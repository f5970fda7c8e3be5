package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/events"
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
	if err := n.reportResets(ctx, host, selected); err != nil {
		return err
	}
	// The daemon then reads everything again, including the GPUs.
	if err := host.Systemd.Kill(ctx, plan.NodeService, false, syscall.SIGHUP); err != nil {
		return err
	}
	n.say("waiting for the daemon to check the GPUs")
	for end := time.Now().Add(resetTime); daemon.ResetPending("/"); {
		if time.Now().After(end) {
			return fmt.Errorf("the daemon has not checked the GPUs within %s, and will when it can; journalctl -u %s shows why", resetTime, plan.NodeService)
		}
		if err := limit.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// reportResets leaves the message for the daemon, which must be running.
func (n *Node) reportResets(ctx context.Context, host *reconcile.Host, selected Selection) error {
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
	slots, err := selected.In(n.Plan.Slots)
	if err != nil {
		return err
	}
	units, err := host.Systemd.Units(ctx, plan.NodeService)
	if err != nil {
		return err
	}
	if units[0].Active != "active" {
		return errors.New("the daemon, which checks the GPUs, does not run; type sudo systemctl start " + plan.NodeService)
	}
	var gpus []string
	var happened []events.Event
	for _, sl := range slots {
		for _, g := range sl.GPUs {
			gpus = append(gpus, cmp.Or(g.UUID, g.PCI))
		}
		happened = append(happened, events.Event{Kind: "mended", Slot: sl.Index, By: plan.ByOperator, Text: "an operator says that the GPU of " + sl.Name + " was reset"})
	}
	if err := (events.Log{File: events.Path}).Add(happened...); err != nil {
		n.Log.Warn("event not recorded", "err", err)
	}
	return daemon.ReportReset("/", gpus, now.Up)
}
