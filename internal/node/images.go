package node

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Images returns the updater of the node's images, and a function that closes it. wrong is called with what is
// wrong with the configuration, if anything. If it returns nil, the slots' files say what the image is.
func Images(wrong func(error) error) (*image.Updater, func(), error) {
	n := &Node{Root: "/"}
	if err := n.LoadStored(); err != nil {
		if err := wrong(err); err != nil {
			return nil, nil, err
		}
		_ = n.recall() // no slots are refused below
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
		Engine: engine, Node: machine, Dir: plan.ImageDir, Name: n.Config.Image.Name, Keep: n.Config.Image.Keep, Pause: time.Second,
		Events: events.Log{File: events.Path},
	}, func() { _ = engine.Close() }, nil
}
