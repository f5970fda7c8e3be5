package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/standin"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// dockerTime is how long Docker has to answer a ping.
const dockerTime = 10 * time.Second

// Daemon returns this machine for the daemon. It says nothing to people.
func Daemon(version string, log *slog.Logger) daemon.Node { return &live{version: version, log: log} }

// live is this machine for the daemon.
type live struct {
	version string
	log     *slog.Logger
	units   systemd.Memory
}

// Read implements daemon.Node.
func (l *live) Read(ctx context.Context) (*daemon.Reading, error) {
	began, err := signals.Now()
	if err != nil {
		return nil, err
	}
	n := l.node()
	if err := n.Refresh(ctx); err != nil {
		return nil, err
	}
	loanEnd, err := n.loanEnd(time.Local)
	if err != nil {
		return nil, err // it was validated
	}
	return &daemon.Reading{
		Plan: n.Plan, Inventory: n.Inventory, Drains: n.Drains, Started: began.Up,
		Metrics: n.Config.Metrics, Notify: n.Config.Notify, Policy: n.Config.Health.Policy(), LoanEnd: loanEnd, Socket: n.Config.Docker.Socket,
		Service: standin.Service{Endpoint: n.AgentEndpoint(), AgentVersion: n.agentVersion()},
		Replan: func(drains []plan.Drain) (*plan.Plan, error) {
			n.Others = &drains
			err := n.MakePlan()
			return n.Plan, err
		},
	}, nil
}

// GPUs implements daemon.Node.
func (l *live) GPUs(ctx context.Context) (*health.GPUs, error) { return signals.ReadGPUs(ctx, "/") }

// Docker implements daemon.Node.
func (l *live) Docker(ctx context.Context, socket string) error {
	engine, err := docker.New(socket)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	ctx, cancel := context.WithTimeout(ctx, dockerTime)
	defer cancel()
	return engine.Ping(ctx)
}

// Signals implements daemon.Node.
func (l *live) Signals(root string, disks, cdiDirs []string) (health.Node, error) {
	return signals.ReadNode(root, disks, cdiDirs...)
}

// Stamp implements daemon.Node.
func (l *live) Stamp(p *plan.Plan) string {
	var b strings.Builder
	file := func(path string) {
		fi, err := os.Stat(path)
		switch {
		case err != nil:
			fmt.Fprintln(&b, path, "-")
		case fi.IsDir(): // in sysfs, which keeps no times
			fmt.Fprintln(&b, path)
		default:
			fmt.Fprintln(&b, path, fi.Sys().(*syscall.Stat_t).Ino, fi.Size(), fi.ModTime().UnixNano()) //nolint:forcetypeassert // on Linux
		}
	}
	for _, path := range []string{plan.ConfigPath, plan.BindingsPath, plan.DrainsPath, plan.AgentsPath, plan.ImagesPath} {
		file(path)
	}
	// Anyone who divides a GPU again must also write its description for Docker again, and at boot it may
	// come late.
	for _, dir := range inventory.DefaultCDIDirs() {
		specs, _ := os.ReadDir(dir) // what cannot be read is read again in the next full pass
		for _, s := range specs[:min(len(specs), inventory.MaxCDISpecs)] {
			file(dir + "/" + s.Name())
		}
	}
	file("/dev/nvidia-uvm") // its number changes when its module is loaded again
	for _, f := range p.Files {
		if f.Source != "" {
			file(f.Source)
		}
	}
	texts := []string{"/sys/module/nvidia/version", "/sys/module/amdgpu/version"}
	var gpus []string
	for _, s := range p.Slots {
		gpus = append(gpus, s.Each(func(g plan.SlotGPU) string { return g.PCI })...)
	}
	slices.Sort(gpus)
	for _, pci := range slices.Compact(gpus) { // parts of a GPU have its address
		file("/sys/bus/pci/devices/" + pci)
		file("/sys/bus/pci/devices/" + pci + "/driver")
		texts = append(texts, "/sys/bus/pci/devices/"+pci+"/current_compute_partition")
	}
	for _, path := range texts {
		if text, err := os.ReadFile(path); err == nil {
			b.Write(text)
		}
	}
	return b.String()
}

// Host implements daemon.Node.
func (l *live) Host(ctx context.Context) (*reconcile.Host, func(), error) {
	host, err := l.node().Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	host.Bus.Memory = &l.units
	return host.Host, host.Close, nil
}

// Watch implements daemon.Node.
func (l *live) Watch(ctx context.Context, changed func(unit string)) (alive func() bool, err error) {
	bus, err := systemd.Connect(ctx)
	if err != nil {
		return nil, err
	}
	bus.Watch(ctx, changed)
	context.AfterFunc(ctx, bus.Close)
	return bus.Alive, nil
}

func (l *live) node() *Node { return &Node{Root: "/", Version: l.version, Log: l.log} }

// Replaced reports whether another file is now where this program was started from.
func Replaced() bool {
	exe, err := os.Executable()
	if err != nil {
		return false
	}
	exe = strings.TrimSuffix(exe, " (deleted)")
	there, err := os.Stat(exe)
	if err != nil {
		return false // it is gone, so no one could start it
	}
	running, err := os.Stat("/proc/self/exe")
	return err == nil && !os.SameFile(there, running)
}
