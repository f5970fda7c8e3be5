package node

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/selftest"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Doctor runs doctor's checks on this machine, those of slots in these slots or, if there are none, in all. It
// returns what the checks have read, too.
func (n *Node) Doctor(ctx context.Context, o doctor.Options, api doctor.API, slots ...int) (*doctor.Report, *doctor.Machine, error) {
	if n.Recorded {
		return n.recordedDoctor(ctx, o)
	}
	life, end := context.WithCancel(ctx)
	src := &source{n: n, life: life}
	defer src.close()
	defer end() // a check may still wait for systemd
	o.Log, o.Say = n.Log, n.say
	m := &doctor.Machine{Tree: host.Tree{Root: "/"}, Source: src, Now: time.Now(), API: api, Slots: slots}
	report, err := doctor.Run(ctx, m, o)
	return report, m, err
}

// journalLines is how many lines of an agent's journal are searched for its last words.
const journalLines = 40

// source is this machine for doctor.
type source struct {
	n *Node
	// life is the context of the whole run: a connection ends with the context that made it, and
	// a check's context ends with the check.
	life context.Context

	mu   sync.Mutex
	host *Host
}

// connect connects to systemd once, for all checks.
func (d *source) connect() (*Host, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.host == nil {
		host, err := d.n.Open(d.life)
		if err != nil {
			return nil, err
		}
		d.host = &host
	}
	return d.host, nil
}

// close closes what the checks have opened.
func (d *source) close() {
	if !d.mu.TryLock() {
		return // a check still waits for systemd; the end of life closes what it opens
	}
	defer d.mu.Unlock()
	if d.host != nil {
		d.host.Close()
	}
}

func (d *source) Config() (*config.Config, error) {
	if err := d.n.LoadStored(); err != nil {
		return nil, err
	}
	cfg := d.n.Config
	return &cfg, nil
}

func (d *source) Inventory(ctx context.Context) (*inventory.Inventory, error) {
	err := d.n.Read(ctx)
	return d.n.Inventory, err
}

func (d *source) Plan() (*plan.Plan, error) {
	err := d.n.MakePlan()
	return d.n.Plan, err
}

func (d *source) Observe(ctx context.Context) (*reconcile.State, error) {
	host, err := d.connect()
	if err != nil {
		return nil, err
	}
	host.GPUs = d.n.Inventory.GPUs
	return host.Observe(ctx, d.n.Plan)
}

func (d *source) Units(ctx context.Context, pattern string) ([]slot.Unit, error) {
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

func (d *source) Journal(ctx context.Context, unit string) ([]string, error) {
	return agent.Journal(ctx, unit, journalLines)
}

func (d *source) Containers(ctx context.Context, m *doctor.Machine, quick bool) ([]selftest.SlotReport, error) {
	say := d.n.say
	if quick {
		say = func(string, ...any) {}
	}
	return selftest.Run(ctx, selftest.Options{Plan: m.Plan, State: m.State, Slots: m.Slots, Quick: quick, Log: d.n.Log, Say: say})
}

func (d *source) Pull(ctx context.Context) (digest string, err error) {
	u, closeUpdater, err := Images(func(err error) error { return err })
	if err != nil {
		return "", err
	}
	defer closeUpdater()
	return u.Again(ctx)
}

func (d *source) Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error) {
	u, closeUpdater, err := Images(func(err error) error { return err })
	if err != nil {
		return nil, err
	}
	defer closeUpdater()
	return u.Evaluate(ctx, atOnce)
}

func (d *source) Kill(ctx context.Context, unit string) error {
	host, err := d.connect()
	if err != nil {
		return err
	}
	return host.Systemd.Kill(ctx, unit, false, syscall.SIGKILL)
}

// ask asks the engine. It connects for each question, so that no connection stays open.
func ask[T any](d *source, f func(*docker.Engine) (T, error)) (answer T, err error) {
	e, err := docker.New(d.n.Config.Docker.Socket)
	if err != nil {
		return answer, err
	}
	defer func() { _ = e.Close() }()
	return f(e)
}

func (d *source) Docker(ctx context.Context) (docker.Info, error) {
	return ask(d, func(e *docker.Engine) (docker.Info, error) {
		info, err := e.Info(ctx)
		if err == nil {
			info.Runc = e.Runc(ctx)
		}
		return info, err
	})
}

func (d *source) Image(ctx context.Context, ref string) (docker.Image, error) {
	return ask(d, func(e *docker.Engine) (docker.Image, error) { return e.Image(ctx, ref) })
}

func (d *source) Running(ctx context.Context) ([]docker.Container, error) {
	return ask(d, func(e *docker.Engine) ([]docker.Container, error) { return e.Running(ctx) })
}
