package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// unknownAgent is the agent of a slot in the status of a recorded machine.
const unknownAgent = "unknown"

// recordedStatus returns the status of a recorded node, as far as it follows from the plan: what its agents do and
// which of its files differ is not recorded.
func (n *Node) recordedStatus(ctx context.Context) (Status, error) {
	err := n.Inspect(ctx)
	if errors.Is(err, ErrNone) {
		return Status{}, fmt.Errorf("%s has no %s, so it is not known to be a node; kbnode plan --root %[1]s shows the slots that it would have", n.Name, plan.BindingsPath)
	}
	if err != nil {
		return Status{}, err
	}
	st := StatusOf(n.Plan, &reconcile.State{}, nil)
	st.Recorded = n.Name
	for i, s := range st.Slots {
		if s.Agent == "down" {
			st.Slots[i].Agent = unknownAgent
		}
	}
	st.Warnings = append(st.Warnings, plan.SayUnread(n.Inventory)...)
	return st, nil
}

// recordedDoctor runs the checks that a recorded machine can answer.
func (n *Node) recordedDoctor(ctx context.Context, o doctor.Options) (*doctor.Report, *doctor.Machine, error) {
	f, err := n.open("/kbnode/live.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s does not say what software its machine has (kbnode/live.json); record it with kbnode inventory --capture FILE", n.Name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read recorded machine: %w", err)
	}
	_ = f.Close()
	inv, err := (&source{n: n}).Inventory(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range inv.Problems {
		if p.Subject == "kbnode/live.json" {
			return nil, nil, fmt.Errorf("%s: %s: %s; record the machine again, with this kbnode", n.Name, p.Subject, p.Detail)
		}
	}
	if reflect.ValueOf(inv.Software).IsZero() {
		return nil, nil, fmt.Errorf("%s does not say what software its machine has (kbnode/live.json); record it with kbnode inventory --capture FILE", n.Name)
	}
	o.Log = n.Log
	m := &doctor.Machine{Tree: host.Tree{Root: n.Root}, Source: recording{n: n}, Now: time.Now(), Recorded: n.Name}
	report, err := doctor.Run(ctx, m, o)
	return report, m, err
}

// recording is a recorded machine for doctor.
type recording struct {
	doctor.Source // nil: no check that a recorded machine can answer asks more than the methods below
	n             *Node
}

func (r recording) Config() (*config.Config, error) { return (&source{n: r.n}).Config() }
func (r recording) Plan() (*plan.Plan, error)       { return (&source{n: r.n}).Plan() }

func (r recording) Inventory(ctx context.Context) (*inventory.Inventory, error) {
	return (&source{n: r.n}).Inventory(ctx)
}

func (recording) Units(context.Context, string) ([]slot.Unit, error) {
	return nil, errors.New("units are not recorded")
}

// Docker returns what the engine answered when the machine was recorded.
func (r recording) Docker(context.Context) (docker.Info, error) {
	d := r.n.Inventory.Software.Docker
	return docker.Info{
		Version: d.Version, APIVersion: d.APIVersion, CgroupDriver: d.CgroupDriver, CgroupVersion: d.CgroupVersion,
		StorageDriver: d.StorageDriver, RootDir: d.RootDir, Runtimes: d.Runtimes, DefaultRuntime: d.DefaultRuntime,
		CDISpecDirs: d.CDIDirs, CDIDevices: d.CDIDevices,
	}, nil
}
