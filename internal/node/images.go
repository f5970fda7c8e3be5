package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Images returns the updater of the node's images, and a function that closes it.
func Images() (*image.Updater, func(), error) {
	n := &Node{Root: "/"}
	if err := n.LoadStored(); err != nil {
		return nil, nil, err
	}
	engine, err := docker.New(n.Config.Docker.Socket)
	if err != nil {
		return nil, nil, err
	}
	machine, err := image.OpenMachine()
	if err == nil && len(machine.Policies) == 0 {
		err = image.ErrNoNode
	}
	if err != nil {
		_ = engine.Close()
		return nil, nil, err
	}
	return &image.Updater{
		Engine: engine, Node: machine, Dir: plan.ImageDir, Name: n.Config.Image.Name, Keep: n.Config.Image.Keep, FirstJobs: n.Config.Image.FirstJobs,
		Events: events.Log{File: events.Path},
	}, func() { _ = engine.Close() }, nil
}

// trialPoll is the time between looks at how the first jobs with a new image ended.
const trialPoll = 30 * time.Second

// WatchFirstJobs rolls a new image back if its first jobs fail, until ctx ends. If none is on
// trial, it reads one small file.
func WatchFirstJobs(ctx context.Context, log *slog.Logger) {
	for limit.Sleep(ctx, trialPoll) == nil {
		if st, err := image.Read(plan.ImageDir); err != nil || st.Trial == nil {
			continue // an update reports what is wrong with it
		}
		u, closeUpdater, err := Images()
		var r image.Result
		if err == nil {
			r, err = u.Watch(ctx)
			closeUpdater()
		}
		if _, locked := errors.AsType[*image.LockedError](err); err != nil && !locked && ctx.Err() == nil {
			log.Warn("first jobs with a new image not checked", "err", err)
		} else if r.Action == image.ActionBack {
			log.Warn("image rolled back", "image", r.Name, "reason", r.Reason)
		}
	}
}
