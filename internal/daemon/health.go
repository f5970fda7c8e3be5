package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/guard"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// HealthPath keeps the verdicts about a node, and what they were made of.
const HealthPath = "/var/lib/kbnode/health.json"

const (
	// maxFacts bounds what the kernel said since the last pass.
	maxFacts = 1024
	// kernelRetry lies between two tries to read the kernel's log.
	kernelRetry = 30 * time.Second
)

// Health is the content of HealthPath.
type Health struct {
	State    json.RawMessage  `json:"state"`
	Verdicts []health.Verdict `json:"verdicts"`
}

// ReadHealth reads the verdicts about the machine below root. A machine without
// any has a zero Health.
func ReadHealth(root string) (Health, error) {
	var h Health
	text, err := os.ReadFile(filepath.Join(root, HealthPath))
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return Health{}, fmt.Errorf("read health: %w", err)
	}
	return h, nil
}

// doctor judges the node's health at each pass.
type doctor struct {
	file  string // HealthPath below the machine's root
	state health.State
	// verdicts are those of the last pass.
	verdicts []health.Verdict
	unsaved  bool   // something of them was told since they were written
	engine   string // directory of the Docker engine, as it last said

	mu    sync.Mutex
	facts []health.Fact // of the kernel, since the last pass
}

func newDoctor(root string) (*doctor, error) {
	d := &doctor{file: filepath.Join(root, HealthPath), engine: "/var/lib/docker"}
	kept, err := ReadHealth(root)
	if err == nil && kept.State != nil {
		d.state, err = health.ParseState(kept.State)
	}
	return d, err // without it the kernel's log is judged again
}

// listen collects what the kernel says of GPUs, until ctx ends.
func (d *daemonLoop) listen(ctx context.Context, kmsg health.Kmsg) {
	for ctx.Err() == nil {
		err := kmsg.Run(ctx, func(f health.Fact) {
			d.doctor.hear(f)
			d.wake("the kernel's log")
		})
		if ctx.Err() != nil || err == nil { // a recorded log ends
			return
		}
		d.Log.Warn("kernel's log not read", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(kernelRetry):
		}
	}
}

// hear keeps a fact. Where there are too many, those go that a job can cause at
// will: it must not hide the others.
func (c *doctor) hear(f health.Fact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.facts) == maxFacts {
		i := slices.IndexFunc(c.facts, ofJobs)
		if i < 0 {
			return
		}
		c.facts = slices.Delete(c.facts, i, i+1)
	}
	c.facts = append(c.facts, f)
}

// ofJobs says that a job can cause it at will.
func ofJobs(f health.Fact) bool {
	return f.Kind == health.KindXid && health.LookupXid(f.Xid).Class == health.XidApplication
}

// alarmed says that since the last pass the kernel spoke of a GPU, and of what no
// job can make it say: everything is read anew then, which a job must not get for
// nothing.
func (c *doctor) alarmed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.facts, func(f health.Fact) bool { return !ofJobs(f) })
}

func (c *doctor) take() []health.Fact {
	c.mu.Lock()
	defer c.mu.Unlock()
	facts := c.facts
	c.facts = nil
	return facts
}

// judge makes verdicts, keeps them, and returns what they drain.
func (d *daemonLoop) judge(ctx context.Context, host *reconcile.Host, p *plan.Plan, s *reconcile.State, changes []reconcile.Change, gpus *health.GPUs) ([]plan.Drain, error) {
	moment, err := d.Clock()
	if err != nil {
		return nil, err
	}
	in := health.Signals{Moment: moment, Slots: healthSlots(host.Root, p, s, changes, moment.Now), Kernel: d.doctor.take(), GPUs: gpus}
	if gpus != nil {
		if in.Mended, err = readMended(host.Root); err != nil {
			d.Log.Warn("operator's word not heard", "err", err)
		}
	}
	node, err := health.ReadNode(host.Root, []string{"/", d.doctor.engine, "/var/lib/buildkite-agent"})
	if err != nil {
		d.Log.Debug("node's signals not read", "err", err)
	}
	if err := d.Node.Docker(ctx); err != nil {
		node.Docker = err.Error()
	}
	node.Down = downUnits(ctx, host.Systemd)
	in.Node = &node
	state, verdicts, told := health.Judge(d.doctor.state, in)
	d.doctor.state, d.doctor.verdicts = state, verdicts
	d.tellHealth(told)
	d.doctor.unsaved = d.doctor.unsaved || len(told) > 0 || len(in.Mended) > 0
	if d.doctor.unsaved {
		// On a full disk the node is still to be mended; the next pass tries again.
		if err := d.doctor.save(); err != nil {
			d.Log.Warn("health not kept", "err", err)
		} else if err := heard(host.Root, in.Mended); err != nil {
			d.Log.Warn("operator's word not removed", "err", err)
		}
	}
	return drainsOf(verdicts, p, moment.Now), nil
}

// tellHealth makes events of what Judge told.
func (d *daemonLoop) tellHealth(told []health.Event) {
	var all []events.Event
	for _, e := range told {
		d.Log.Info("health", "kind", e.Kind, "check", e.Check, "gpu", e.GPU, "slot", e.Slot, "level", e.Level.String(), "job", e.Job, "text", e.Text)
		text := e.Check + " " + e.Kind + ": " + e.Text
		if e.Job != "" {
			text += " (job " + e.Job + ")"
		}
		all = append(all, events.Event{Time: e.Time, Kind: "health", Slot: e.Slot, By: e.Check, Text: text})
	}
	d.event(all...)
}

// save writes the verdicts down, and what they were made of.
func (c *doctor) save() error {
	raw, err := json.Marshal(c.state)
	if err != nil {
		return fmt.Errorf("write health: %w", err)
	}
	text, err := json.Marshal(Health{State: raw, Verdicts: c.verdicts})
	if err == nil {
		err = renameio.WriteFile(c.file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write health: %w", err)
	}
	c.unsaved = false
	return nil
}

// drainsOf are the drains that verdicts ask for, the strongest one of each slot.
func drainsOf(verdicts []health.Verdict, p *plan.Plan, now time.Time) []plan.Drain {
	var drains []plan.Drain
	for _, s := range p.Slots {
		if v, ok := health.Holding(verdicts, s.Index); ok {
			since := v.Since
			if since.IsZero() {
				since = now
			}
			drains = append(drains, plan.Drain{Slot: s.Index, By: v.Check, Reason: v.Reason + "; " + v.Fix, Since: since.UTC().Truncate(time.Second)})
		}
	}
	return drains
}

// withHealth are the drains with those of verdicts exchanged for others.
func withHealth(drains, of []plan.Drain) []plan.Drain {
	drains = slices.DeleteFunc(slices.Clone(drains), func(d plan.Drain) bool { return d.By != plan.ByOperator })
	return append(drains, of...)
}

func sameDrains(a, b []plan.Drain) bool {
	less := func(x, y plan.Drain) int {
		if x.Slot != y.Slot {
			return x.Slot - y.Slot
		}
		return strings.Compare(x.By, y.By)
	}
	a, b = slices.SortedFunc(slices.Values(a), less), slices.SortedFunc(slices.Values(b), less)
	return slices.EqualFunc(a, b, func(x, y plan.Drain) bool { return x.Slot == y.Slot && x.By == y.By && x.Reason == y.Reason })
}

// healthSlots are the plan's slots as far as health needs them.
func healthSlots(root string, p *plan.Plan, s *reconcile.State, changes []reconcile.Change, now time.Time) []health.Slot {
	at := map[int]reconcile.SlotState{}
	for _, ss := range s.Slots {
		at[ss.Index] = ss
	}
	var list []health.Slot
	for _, sl := range p.Slots {
		ss := at[sl.Index]
		one := health.Slot{Index: sl.Index}
		if ss.Job != nil {
			one.Job = ss.Job.ID
		}
		one.Agent = disconnected(root, sl, ss, now)
		for _, c := range changes {
			if c.Kind == reconcile.Set && c.Slot == sl.Index {
				one.Limits = c.Why
			}
		}
		if len(sl.GPUs) == 0 {
			list = append(list, one)
		}
		for _, g := range sl.GPUs {
			one.UUID, one.PCI = g.UUID, g.PCI
			list = append(list, one)
		}
	}
	return list
}

// disconnected says why an agent that should wait for jobs does not.
func disconnected(root string, sl plan.Slot, ss reconcile.SlotState, now time.Time) string {
	if !sl.Serves() || ss.Job != nil || ss.Agent.Stopping() {
		return ""
	}
	unit := plan.AgentUnit(sl.Index)
	switch a := ss.Agent; {
	case a.Active == "failed" || a.Sub == "auto-restart":
		return fmt.Sprintf("its agent ends again and again; journalctl -u %s shows why", unit)
	case a.Active != "active" || now.Sub(a.Since) < agent.RegisterTime:
		return ""
	}
	run := filepath.Join(root, plan.RunDir(sl.Index))
	if parked, err := guard.ReadParked(run); err == nil && len(parked) > 0 {
		return "" // it waits, and says why
	}
	fi, err := os.Stat(filepath.Join(root, agent.RegisteredMarker(sl.Index)))
	if err != nil || fi.ModTime().Before(ss.Agent.Since.Add(-time.Second)) {
		return fmt.Sprintf("its agent runs and has not registered; journalctl -u %s shows why", unit)
	}
	return ""
}

// downUnits are those of the GPUs' own services that should run and do not.
func downUnits(ctx context.Context, sd reconcile.Systemd) []string {
	if sd == nil {
		return nil
	}
	units, err := sd.Units(ctx, "nvidia-fabricmanager.service")
	if err != nil {
		return nil
	}
	var down []string
	for _, u := range units {
		if u.Exists() && u.Enabled && !u.Running() {
			down = append(down, u.Name)
		}
	}
	return down
}

// gpus reads the GPUs between two full passes, not at every look: that is what
// costs most.
func (d *daemonLoop) gpus(ctx context.Context) *health.GPUs {
	if time.Since(d.gpusAt) < d.GPUs {
		return nil
	}
	d.gpusAt = time.Now()
	gpus, err := d.Node.GPUs(ctx)
	if err != nil {
		d.Log.Warn("gpus not read", "err", err)
		return nil
	}
	return gpus
}

// Reading is everything that was read of a machine, and the plan made of it.
type Reading struct {
	Plan      *plan.Plan
	Inventory *inventory.Inventory
	Drains    []plan.Drain  // as kept
	Started   time.Duration // when it began, by health.Moment.Up
	Listen    string        // where metrics are to be had; "" is nowhere
	// Replan makes the plan anew, of other drains.
	Replan func() (*plan.Plan, error)
}
