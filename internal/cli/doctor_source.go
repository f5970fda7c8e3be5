package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// journalLines is how many lines of an agent's journal are searched for its last words.
const journalLines = 40

// doctorSource reads this machine, as the other commands do.
type doctorSource struct {
	s Streams
	m *machine
	// life is the context of the whole run: a connection ends with the context that made it, and
	// a check's context ends with the check.
	life context.Context

	mu   sync.Mutex
	host *reconcile.Host
	shut func()
}

// connect connects to systemd once, for all checks.
func (d *doctorSource) connect() (*reconcile.Host, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.host == nil {
		host, shut, err := openHost(d.life, d.s)
		if err != nil {
			return nil, err
		}
		d.host, d.shut = host, shut
	}
	return d.host, nil
}

func (d *doctorSource) close() {
	if !d.mu.TryLock() {
		return // a check still waits for systemd; the end of life closes what it opens
	}
	defer d.mu.Unlock()
	if d.shut != nil {
		d.shut()
	}
}

func (d *doctorSource) Config() (*config.Config, error) {
	if err := d.m.loadConfig(&wishes{}, func(string) string { return "" }); err != nil {
		return nil, err
	}
	full := d.m.cfg.WithDefaults()
	return &full, nil
}

func (d *doctorSource) Inventory(ctx context.Context) (*inventory.Inventory, error) {
	err := d.m.read(ctx, d.s.logger())
	return d.m.inv, err
}

func (d *doctorSource) Plan() (*plan.Plan, error) {
	err := d.m.think()
	return d.m.plan, err
}

func (d *doctorSource) Observe(ctx context.Context) (*reconcile.State, error) {
	host, err := d.connect()
	if err != nil {
		return nil, err
	}
	host.GPUs = d.m.inv.GPUs
	return host.Observe(ctx, d.m.plan)
}

func (d *doctorSource) Units(ctx context.Context, pattern string) ([]slot.Unit, error) {
	host, err := d.connect()
	if err != nil {
		return nil, err
	}
	names, err := host.Systemd.Loaded(ctx, pattern)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 && !strings.ContainsAny(pattern, "*?[") {
		names = []string{pattern} // not loaded, but perhaps on disk
	}
	return host.Systemd.Units(ctx, names...)
}

func (d *doctorSource) Properties(ctx context.Context, unit, kind string, names ...string) (map[string]any, error) {
	bus, err := d.bus()
	if err != nil {
		return nil, err
	}
	return bus.Properties(ctx, unit, kind, names...)
}

func (d *doctorSource) Journal(ctx context.Context, unit string) ([]string, error) {
	return agent.Journal(ctx, unit, journalLines)
}

func (d *doctorSource) Program(ctx context.Context, p reconcile.Program) ([]byte, error) {
	bus, err := d.bus()
	if err != nil {
		return nil, err
	}
	return bus.RunProgram(ctx, p)
}

func (d *doctorSource) bus() (*reconcile.Bus, error) {
	host, err := d.connect()
	if err != nil {
		return nil, err
	}
	bus, ok := host.Systemd.(*reconcile.Bus)
	if !ok {
		return nil, errors.New("systemd is not available")
	}
	return bus, nil
}

func (d *doctorSource) Containers(ctx context.Context, m *doctor.Machine) ([]selftest.SlotReport, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find kbnode's own path: %w", err)
	}
	return selftest.Run(ctx, selftest.Options{
		Plan: m.Plan, State: m.State, Binary: exe, Quick: true, Log: d.s.logger(), Progress: func(string, string) {},
	})
}

// engine connects for each question, so that no connection stays open.
func (d *doctorSource) engine() (*docker.Engine, error) {
	full := d.m.cfg.WithDefaults()
	return docker.New(full.Docker.Socket)
}

func (d *doctorSource) Docker(ctx context.Context) (docker.Info, error) {
	e, err := d.engine()
	if err != nil {
		return docker.Info{}, err
	}
	defer func() { _ = e.Close() }()
	info, err := e.Info(ctx)
	if err == nil {
		info.Runc = e.Runc(ctx)
	}
	return info, err
}

func (d *doctorSource) Image(ctx context.Context, ref string) (docker.Image, error) {
	e, err := d.engine()
	if err != nil {
		return docker.Image{}, err
	}
	defer func() { _ = e.Close() }()
	return e.Image(ctx, ref)
}
