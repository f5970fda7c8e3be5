package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// recall makes a plan of nothing but the slots that the node has, from the files that their jobs
// read: for what must work while the node cannot be planned, because its configuration has a typo, a
// driver hangs or a GPU is missing. Nothing may be changed to match it. A slot whose file cannot be
// read has only a name.
func (n *Node) recall() error {
	files, err := filepath.Glob(filepath.Join(n.Root, filepath.Dir(plan.SlotPolicyPath(0)), "gpu*.json"))
	if err != nil {
		return err
	}
	p := &plan.Plan{Node: n.Config.Node}
	if n.Inventory == nil {
		n.Inventory = &inventory.Inventory{}
	}
	for _, file := range files {
		var k int
		if _, err := fmt.Sscanf(filepath.Base(file), "gpu%d.json", &k); err != nil || filepath.Base(plan.SlotPolicyPath(k)) != filepath.Base(file) {
			continue
		}
		s := plan.Slot{Index: k, Name: plan.SlotName(k), User: plan.UserName(k)}
		if pol, err := slot.ReadPolicy(n.Root, k); err == nil {
			s.CPUs, s.MemoryNodes, s.MemoryBytes, s.DiskBytes = pol.CPUs, pol.MemoryNodes, pol.MemoryBytes, pol.DiskBytes
			for i, g := range pol.GPUs {
				s.GPUs = append(s.GPUs, plan.SlotGPU{Number: i, UUID: g.UUID, PCI: g.PCI, Vendor: pol.Vendor, Part: g.Part, Instance: g.Instance, Partition: g.Partition})
			}
			n.asPlanned(pol)
		}
		if text, err := n.ReadFile(plan.AgentDir(k) + "/buildkite-agent.cfg"); err == nil {
			s.Queue = agentQueue(string(text))
		}
		p.Slots = append(p.Slots, s)
	}
	if len(p.Slots) == 0 {
		return errors.New("no slot has been set up")
	}
	slices.SortFunc(p.Slots, func(a, b plan.Slot) int { return a.Index - b.Index })
	n.Plan = p
	return nil
}

// asPlanned takes over what a slot's file says of a configuration that is not known now.
func (n *Node) asPlanned(pol plan.JobPolicy) {
	if pol.DockerSocket != "" {
		n.Config.Docker.Socket = pol.DockerSocket
	}
	if pol.NodeImage != "" {
		n.Config.Image.Name = pol.NodeImage
	}
}

// refreshOrRecall is Refresh for what must work although the node cannot be planned: why is then the
// reason, and the plan has only the slots that there are.
func (n *Node) refreshOrRecall(ctx context.Context, host *reconcile.Host, refresh func(context.Context) error) (why, err error) {
	why = refresh(ctx)
	if why == nil || errors.Is(why, ErrNone) || ctx.Err() != nil {
		return nil, why
	}
	if n.recall() != nil {
		return nil, why
	}
	if n.Drains, err = host.ReadDrains(); err != nil {
		return nil, errors.Join(why, err)
	}
	n.showDrains()
	return why, nil
}

// oneLine returns an error for a warning.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// showDrains gives the slots of a recalled plan their drains.
func (n *Node) showDrains() {
	for i, s := range n.Plan.Slots {
		n.Plan.Slots[i].Drains = slices.DeleteFunc(slices.Clone(n.Drains), func(d plan.Drain) bool { return d.Slot != s.Index })
	}
}

// switchAgents starts and stops the agents of slots as their drains say, without a plan. Nothing
// starts an agent at boot but the daemon, by the plan.
func switchAgents(ctx context.Context, host *reconcile.Host, slots []plan.Slot) error {
	states, err := host.Slots(ctx, slots)
	if err != nil {
		return err
	}
	var errs []error
	for i, s := range slots {
		switch unit := plan.AgentUnit(s.Index); {
		case !s.Serves():
			errs = append(errs, host.Systemd.Drain(ctx, unit))
		case states[i].Agent.Stopping():
			errs = append(errs, fmt.Errorf("the agent of %s is stopping after its job; type sudo kbnode resume %s when it has", s.Name, s.Name))
		default:
			errs = append(errs, host.Systemd.Start(ctx, unit))
		}
	}
	return errors.Join(errs...)
}
