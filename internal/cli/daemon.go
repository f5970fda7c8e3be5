package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/daemon"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/metrics"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// dockerTime is how long Docker has to answer a ping.
const dockerTime = 10 * time.Second

func newDaemon(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "daemon",
		Short: "Keep this node in its planned state (run by its service)",
		Long: `Keep this node in its planned state: at once when systemd reports that a unit
changed, otherwise every 30 seconds. On SIGHUP, which systemctl reload kbnode sends,
it reads everything again. It never ends a job, and you can stop it at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), s) },
	}
}

func runDaemon(ctx context.Context, s Streams) error {
	if err := needRoot("daemon"); err != nil {
		return err
	}
	fewThreads()
	probe.Keep()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	wake := make(chan struct{})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
			}
			select {
			case <-ctx.Done():
				return
			case wake <- struct{}{}:
			}
		}
	}()
	go watchFirstJobs(ctx, s.logger())
	go watchUpgrade(ctx, s, s.logger())
	told := metrics.New(metrics.Options{
		Version: Version(), Commit: readVersion().Commit, Log: s.logger(),
		Images: func() (image.State, error) { return image.Read(plan.ImageDir) },
	})
	defer told.Close()
	daemon.Run(ctx, daemon.Options{
		Root: "/", Kmsg: health.Kmsg{Owner: health.OwnerOf("/")},
		Node: &liveNode{s: s}, Events: events.Log{File: events.Path}, Log: s.logger(), Wake: wake, Replaced: replaced,
		Publish: func(seen daemon.Snapshot) {
			told.Publish(seen)
			if !seen.Whole {
				return // the next look soon needs this memory again
			}
			if err := lazy.Trim(); err != nil {
				s.logger().Debug("memory not released", "err", err)
			}
		},
	})
	return nil
}

// beFrugal is for a process that runs all the time, once for each slot: some extra work is
// better than a large heap.
func beFrugal() {
	debug.SetGCPercent(25)
	fewThreads()
}

// fewThreads saves the memory that the runtime keeps for each of hundreds of CPUs.
func fewThreads() { runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) }

// replaced reports whether another file is now where this program was started from.
func replaced() bool {
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

// liveNode is this machine for the daemon.
type liveNode struct {
	s     Streams
	units reconcile.Memory
}

// Read implements daemon.Node.
func (n *liveNode) Read(ctx context.Context) (*daemon.Reading, error) {
	began, err := health.Now()
	if err != nil {
		return nil, err
	}
	m, err := readNode(ctx, n.s)
	if err != nil {
		return nil, err
	}
	return &daemon.Reading{
		Plan: m.plan, Inventory: m.inv, Drains: m.drains, Started: began.Up,
		Listen: m.cfg.Metrics.Listen, Socket: m.cfg.WithDefaults().Docker.Socket,
		Replan: func(drains []plan.Drain) (*plan.Plan, error) {
			m.others = &drains
			err := m.think()
			return m.plan, err
		},
	}, nil
}

// GPUs implements daemon.Node.
func (n *liveNode) GPUs(ctx context.Context) (*health.GPUs, error) { return health.ReadGPUs(ctx, "/") }

// Docker implements daemon.Node.
func (n *liveNode) Docker(ctx context.Context, socket string) error {
	engine, err := docker.New(socket)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	ctx, cancel := context.WithTimeout(ctx, dockerTime)
	defer cancel()
	return engine.Ping(ctx)
}

// Stamp implements daemon.Node.
func (n *liveNode) Stamp(p *plan.Plan) string {
	var b strings.Builder
	file := func(path string) {
		fi, err := os.Stat(path)
		if err != nil {
			fmt.Fprintln(&b, path, "-")
			return
		}
		ino := uint64(0)
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			ino = st.Ino
		}
		if fi.IsDir() { // in sysfs, which keeps no times
			fmt.Fprintln(&b, path)
			return
		}
		fmt.Fprintln(&b, path, ino, fi.Size(), fi.ModTime().UnixNano())
	}
	// Anyone who divides a GPU again must also write its description for Docker again.
	for _, path := range []string{plan.ConfigPath, plan.BindingsPath, plan.DrainsPath, plan.AgentsPath, "/etc/cdi/nvidia.yaml", "/run/cdi/nvidia.yaml"} {
		file(path)
	}
	for _, f := range p.Files {
		if f.Source != "" {
			file(f.Source)
		}
	}
	texts := []string{"/sys/module/nvidia/version", "/sys/module/amdgpu/version"}
	var gpus []string
	for _, s := range p.Slots {
		gpus = append(gpus, s.Each(pciOf)...)
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
func (n *liveNode) Host(ctx context.Context) (*reconcile.Host, func(), error) {
	host, shut, err := openHost(ctx, n.s)
	if err != nil {
		return nil, nil, err
	}
	if bus, ok := host.Systemd.(*reconcile.Bus); ok {
		bus.Memory = &n.units
	}
	return host, shut, nil
}

// Watch implements daemon.Node.
func (n *liveNode) Watch(ctx context.Context, changed func(unit string)) (alive func() bool, err error) {
	bus, err := reconcile.Connect(ctx)
	if err != nil {
		return nil, err
	}
	bus.Watch(ctx, changed)
	context.AfterFunc(ctx, bus.Close)
	return bus.Alive, nil
}
