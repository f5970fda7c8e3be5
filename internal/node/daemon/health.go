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
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/standin"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// HealthPath stores the verdicts about a node and the state behind them.
const HealthPath = "/var/lib/kbnode/health.json"

const (
	// maxFacts bounds the kernel's facts since the last pass.
	maxFacts = 1024
	// kernelRetry is the time between two attempts to read the kernel's log.
	kernelRetry = 30 * time.Second
	// ageTime is how much of the age of faults a reboot may lose.
	ageTime = time.Hour
)

// Health is the content of HealthPath.
type Health struct {
	State    json.RawMessage  `json:"state"`
	Verdicts []health.Verdict `json:"verdicts"`
}

// ReadHealth reads the verdicts about the machine below root. It returns a zero Health if
// there are none.
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

// healthState judges the node's health at each pass.
type healthState struct {
	Health            // without its State, which is state
	file       string // HealthPath below the machine's root
	state      health.State
	unsaved    bool          // something was reported since it was written
	aged       time.Duration // State.Age as written
	faultCount int           // State.FaultCount as written

	mu    sync.Mutex
	facts []health.Fact // of the kernel, since the last pass
}

func newHealthState(root string) (*healthState, error) {
	stored, err := ReadHealth(root)
	d := &healthState{Health: stored, file: filepath.Join(root, HealthPath), unsaved: true}
	d.Verdicts = nil
	if d.State != nil {
		d.state, err = health.ParseState(d.State)
	}
	return d, err // without it, the kernel's log is judged again
}

// listen collects the kernel's messages about GPUs until ctx ends.
func (d *daemonLoop) listen(ctx context.Context, kmsg signals.Kmsg) {
	for ctx.Err() == nil {
		err := kmsg.Run(ctx, func(f health.Fact) {
			d.health.addFact(f)
			d.wake("the kernel log")
		})
		if ctx.Err() != nil || err == nil { // a recorded log ends
			return
		}
		d.Log.Warn("kernel log not read", "err", err)
		_ = limit.Sleep(ctx, kernelRetry) // Run ends with the context
	}
}

// addFact keeps a fact. If there are too many, it drops one that a job can cause at will, so
// that these do not hide the others, or else the new one.
func (c *healthState) addFact(f health.Fact) {
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

// ofJobs reports whether a job can cause the fact at will.
func ofJobs(f health.Fact) bool {
	switch f.Kind {
	case health.KindXid:
		return health.LookupXid(f.Xid).Class == health.XidApplication
	case health.KindRing, health.KindFault: // a reset that follows is a fact of its own
		return true
	}
	return false
}

// alarmed reports whether the kernel has reported a GPU since the last pass, not counting
// what jobs can cause: an alarm makes the daemon read everything again, and jobs must not
// be able to trigger that.
func (c *healthState) alarmed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.facts, func(f health.Fact) bool { return !ofJobs(f) })
}

func (c *healthState) take() []health.Fact {
	c.mu.Lock()
	defer c.mu.Unlock()
	facts := c.facts
	c.facts = nil
	return facts
}

// observation is what a pass has read when it judges.
type observation struct {
	plan    *plan.Plan
	state   *reconcile.State   // nil: what its slots run must still be read
	changes []reconcile.Change // from state to plan
	gpus    *health.GPUs       // nil: not read
	out     map[int]string     // slots whose drains for repeated faults are stored, and why
	faults  map[int]string     // slots that a fault's stored drain keeps out of service, and its check
	node    bool               // also read disks, engine and services
}

// judge makes verdicts, stops the agents of the slots that they drain, and returns these
// drains. Signals that cannot be read keep their last verdict.
func (d *daemonLoop) judge(ctx context.Context, host *reconcile.Host, o observation) []plan.Drain {
	moment, err := d.Clock()
	if err != nil {
		d.Log.Warn("clocks not read", "err", err)
		drains := drainsOf(d.health.Verdicts, o.plan, d.health.state.Now)
		if d.clocks.Boot == "" { // nothing was judged yet: what was stored holds
			drains = slices.DeleteFunc(slices.Clone(d.drains), func(o plan.Drain) bool { return o.By == plan.ByOperator || o.By == plan.ByLoan })
		}
		return append(drains, d.loanDrains(o.plan)...)
	}
	states, unread := d.slotStates(ctx, host, o)
	if !slices.Contains(unread, health.CheckAgent) {
		d.recordParked(o.plan, states, moment.Up)
	}
	in := health.Signals{Moment: moment, Slots: healthSlots(o.plan, states, o.changes, moment.Now), Kernel: d.health.take(), GPUs: o.gpus, Policy: d.reading.Policy, Out: o.out, Faults: o.faults, Evaluations: d.evaluations.take()}
	for i := range in.Slots {
		in.Slots[i].Unread = unread
	}
	if o.gpus != nil {
		d.snapshot.GPUs = o.gpus
		if in.ResetByHand, err = readReports(host.Root, resetsPath); err != nil {
			d.Log.Warn("repaired GPUs not read", "err", err)
		}
		if in.Returned, err = readReports(host.Root, returnsPath); err != nil {
			d.Log.Warn("returned GPUs not read", "err", err)
		}
	}
	if o.node {
		in.Node = d.node(ctx, host)
	}
	state, verdicts, happened := health.Judge(d.health.state, in)
	d.health.state, d.health.Verdicts = state, verdicts
	d.clocks.set(moment, in.Node)
	drains := append(drainsOf(verdicts, o.plan, moment.Now), d.loanDrains(o.plan)...)
	d.hold(ctx, host, states, slices.Contains(unread, health.CheckAgent), drains)
	d.recordHealth(happened)
	d.health.unsaved = d.health.unsaved || len(happened) > 0 || len(in.ResetByHand) > 0 || len(in.Returned) > 0 || len(in.Evaluations) > 0
	faults := state.FaultCount()
	d.health.unsaved = d.health.unsaved || faults != d.health.faultCount || faults > 0 && state.Age-d.health.aged > ageTime
	if saved := d.health.unsaved && d.save() == nil; saved && o.gpus != nil { // on a full disk, the next pass tries again
		d.judged = reports{resets: in.ResetByHand, returns: in.Returned}
	}
	return drains
}

// slotStates returns what the slots run: as observed, else as read separately, else as last
// known. unread lists the checks that these states cannot answer.
func (d *daemonLoop) slotStates(ctx context.Context, host *reconcile.Host, o observation) (states []slot.State, unread []string) {
	if o.state != nil {
		d.slots = o.state.Slots
		return d.slots, nil
	}
	if host.Systemd != nil {
		states, err := host.Slots(ctx, o.plan.Slots)
		if err == nil {
			d.slots = states
			return states, []string{health.CheckLimits}
		}
		d.Log.Warn("slots not read", "err", err)
	}
	return d.slots, []string{health.CheckLimits, health.CheckAgent}
}

// node reads the node's signals.
func (d *daemonLoop) node(ctx context.Context, host *reconcile.Host) *health.Node {
	disks := []string{"/", d.engine.RootDir, "/var/lib/buildkite-agent"}
	if dir := d.engine.ContainerdDir; dir != "" {
		disks = append(disks, dir)
	}
	node, err := d.Node.Signals(host.Root, disks, d.engine.CDIDirs)
	if err != nil {
		d.Log.Debug("node's signals not read", "err", err)
	}
	if d.reading.Socket == "" {
		node.Unread = append(node.Unread, health.CheckDocker)
	} else if err := d.Node.Docker(ctx, d.reading.Socket); err != nil {
		node.Docker = err.Error()
	}
	var read bool
	node.Down, read = downUnits(ctx, host.Systemd)
	if !read {
		node.Unread = append(node.Unread, health.CheckUnit)
	}
	return &node
}

// recordHealth records the events that Judge returned.
func (d *daemonLoop) recordHealth(happened []health.Event) {
	var all []events.Event
	for _, e := range happened {
		d.Log.Info("health", "kind", e.Kind, "check", e.Check, "gpu", e.GPU, "slot", e.Slot, "level", e.Level.String(), "job", e.Job, "text", e.Text)
		text := e.Check + " " + e.Kind + ": " + e.Text
		if e.Job != "" {
			text += " (job " + e.Job + ")"
		}
		all = append(all, events.Event{Time: e.Time, Kind: "health", Slot: e.Slot, By: e.Check, Text: text, Level: levelOf(e)})
	}
	d.event(all...)
}

// levelOf returns the level of an event: "" unless it is about a verdict, which is what follows from the others.
func levelOf(e health.Event) string {
	switch e.Kind {
	case "raised", "changed":
		return e.Level.String()
	case "cleared":
		return events.Info
	}
	return ""
}

// save writes the verdicts and the state behind them.
func (d *daemonLoop) save() error {
	c := d.health
	var text []byte
	raw, err := json.Marshal(c.state)
	if err == nil {
		c.State = raw
		text, err = json.Marshal(c.Health)
	}
	if err == nil {
		_, err = bounded(d, "health", writeTime, func() (struct{}, error) {
			return struct{}{}, renameio.WriteFile(c.file, append(text, '\n'), 0o644)
		})
	}
	if err != nil {
		err = fmt.Errorf("write health: %w", err)
		d.Log.Warn("health not kept", "err", err)
	}
	c.unsaved = err != nil
	if err == nil {
		c.aged, c.faultCount = c.state.Age, c.state.FaultCount()
	}
	return err
}

// healthSlots converts the plan's slots to what health needs.
func healthSlots(p *plan.Plan, states []slot.State, changes []reconcile.Change, now time.Time) []health.Slot {
	at := map[int]slot.State{}
	for _, ss := range states {
		at[ss.Index] = ss
	}
	var list []health.Slot
	for _, sl := range p.Slots {
		ss := at[sl.Index]
		one := health.Slot{Index: sl.Index}
		if ss.Job != nil {
			one.Job = ss.Job.ID
		}
		one.Agent = ss.Disconnected(sl, now)
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

// downUnits returns the GPUs' own services that should run but do not. read is false if
// systemd did not answer.
func downUnits(ctx context.Context, sd systemd.Manager) (down []string, read bool) {
	if sd == nil {
		return nil, false
	}
	units, err := sd.Units(ctx, "nvidia-fabricmanager.service")
	if err != nil {
		return nil, false
	}
	if u := units[0]; u.Exists() && u.Enabled && !u.Running() {
		down = []string{u.Name}
	}
	return down, true
}

// gpus reads the GPUs between two full passes, but not at every look, because it is the
// most expensive reading. It returns nil if they were not read.
func (d *daemonLoop) gpus(ctx context.Context) *health.GPUs {
	if time.Since(d.gpusAt) < gpusPause {
		return nil
	}
	d.gpusAt = time.Now()
	gpus, err := bounded(d, health.ReadGPUs, gpusTime, func() (*health.GPUs, error) { return d.Node.GPUs(ctx) })
	if err != nil {
		d.Log.Warn("gpus not read", "err", err)
		return nil
	}
	return gpus
}

// Reading is everything that was read of a machine, and the resulting plan.
type Reading struct {
	Plan      *plan.Plan
	Inventory *inventory.Inventory
	Drains    []plan.Drain  // as stored
	Started   time.Duration // by health.Moment.Up
	Metrics   config.Metrics
	Policy    config.HealthPolicy
	Notify    config.Notify // who is notified of events
	LoanEnd   time.Time     // when the machine is to take no more jobs; zero means never
	Socket    string        // of the Docker engine
	Service   standin.Service
	// Replan makes the plan again with other drains than the stored ones.
	Replan func(drains []plan.Drain) (*plan.Plan, error)
}
