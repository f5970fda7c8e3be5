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
	u, closeUpdater, err := n.images()
	if err != nil {
		return nil, nil, err
	}
	if m, ok := u.Node.(*image.Machine); ok && len(m.Policies) == 0 {
		closeUpdater()
		return nil, nil, image.ErrNoNode
	}
	return u, closeUpdater, nil
}

// images returns the updater of this machine's images, with or without slots, as the loaded configuration says.
func (n *Node) images() (*image.Updater, func(), error) {
	if n.openImages != nil {
		return n.openImages()
	}
	engine, err := docker.New(n.Config.Docker.Socket)
	if err != nil {
		return nil, nil, err
	}
	machine, err := image.OpenMachine()
	if err != nil {
		_ = engine.Close()
		return nil, nil, err
	}
	return &image.Updater{
		Engine: engine, Node: machine, Dir: plan.ImageDir, Name: n.Config.Image.Name, Keep: n.Config.Image.Keep, Pause: time.Second,
		Events: events.Log{File: events.Path},
	}, func() { _ = engine.Close() }, nil
}
