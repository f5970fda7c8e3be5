package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/acceptance"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
)

// acceptTime is how long doctor may take for the acceptance: no one waits at a screen.
const acceptTime = 5 * time.Minute

// Accept runs the acceptance list on this node.
func (n *Node) Accept(ctx context.Context, api doctor.API, say func(string)) (*acceptance.Report, error) {
	host, err := n.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	images, closeImages, err := Images()
	if err != nil {
		return nil, err
	}
	defer closeImages()
	if _, err := n.LookLocked(ctx, host.Host); err != nil {
		return nil, err
	}
	report, err := acceptance.Run(ctx, &accepted{n, host.Host, images, api}, say)
	if err != nil {
		return nil, err
	}
	report.Node, report.Kbnode, report.Image, report.Queues = n.Plan.Node, n.Version, images.Name, Queues(n.Plan)
	slices.Sort(report.Queues)
	for _, slot := range n.Plan.Slots {
		for _, g := range slot.GPUs {
			report.GPUs = append(report.GPUs, slot.Name+": "+g.Model+", "+g.UUID)
		}
	}
	return report, nil
}

// accepted is this machine for the acceptance.
type accepted struct {
	node   *Node
	host   *reconcile.Host
	images *image.Updater
	api    doctor.API
}

// quiet returns this machine, not looked at yet, without the steps' own progress.
func (a *accepted) quiet() *Node {
	return &Node{Root: "/", Version: a.node.Version, Log: slog.New(slog.DiscardHandler)}
}

func (a *accepted) Doctor(ctx context.Context) (*doctor.Report, error) {
	report, _, err := a.quiet().Doctor(ctx, doctor.Options{Limit: acceptTime}, a.api)
	return report, err
}

func (a *accepted) Selftest(ctx context.Context) ([]selftest.SlotReport, error) {
	out, err := a.quiet().Selftest(ctx, nil)
	if err != nil {
		return nil, err
	}
	return out.Slots, nil
}

func (a *accepted) Pull(ctx context.Context) (string, error) { return a.images.Again(ctx) }

func (a *accepted) Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error) {
	return a.images.Evaluate(ctx, atOnce)
}

func (a *accepted) Idle(ctx context.Context) (int, bool, error) {
	state, err := a.host.Observe(ctx, a.node.Plan)
	if err != nil {
		return 0, false, err
	}
	for _, slot := range a.node.Plan.Slots {
		if ss := state.Slot(slot.Index); slot.Serves() && ss.Busy() == "" && ss.Agent.Active == "active" {
			return slot.Index, true, nil
		}
	}
	return 0, false, nil
}

func (a *accepted) Agent(ctx context.Context, slot int) (acceptance.Agent, error) {
	state, err := a.host.Observe(ctx, a.node.Plan)
	if err != nil {
		return acceptance.Agent{}, err
	}
	ss := state.Slot(slot)
	is := acceptance.Agent{Registered: UsesBuildkite(ss)}
	if ss.Agent.Active == "active" {
		is.PID = ss.Agent.MainPID
	}
	return is, nil
}

func (a *accepted) Kill(ctx context.Context, slot int) error {
	state, err := a.host.Observe(ctx, a.node.Plan)
	if err != nil {
		return err
	}
	ss := state.Slot(slot)
	if busy := ss.Busy(); busy != "" { // a job may have started since
		return fmt.Errorf("kill %s: it is busy with %s", plan.AgentUnit(slot), busy)
	}
	p, err := os.FindProcess(ss.Agent.MainPID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", plan.AgentUnit(slot), err)
	}
	return nil
}
