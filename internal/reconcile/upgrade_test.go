package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/systemd"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

const newAgent = "3.100.0"

// fleet is a node whose agents are to be upgraded. Agents register when the upgrade
// waits, except those of a bad version in the given slots.
type fleet struct {
	*machine
	n     int
	bad   map[int]bool    // slots in which newAgent does not register
	onGo  func(waits int) // called at each wait
	drain map[int]bool    // slots that serve no one
	most  int             // the most slots that were without a registered agent at once
	upg   *reconcile.Upgrade
	lines []string
}

func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := &fleet{machine: newMachine(t), n: n, bad: map[int]bool{}, drain: map[int]bool{}}
	waits := 0
	f.h.Sleep = func(ctx context.Context, _ time.Duration) error {
		f.mostDown()
		f.register()
		if waits++; f.onGo != nil {
			f.onGo(waits)
		}
		time.Sleep(time.Millisecond)
		return ctx.Err()
	}
	f.upg = &reconcile.Upgrade{
		Host:   f.h,
		Lock:   func(context.Context) (func(), error) { return func() {}, nil },
		Plan:   func(context.Context) (*plan.Plan, error) { return f.plan(), nil },
		Name:   func(v string) string { return "agent " + v },
		Why:    func(context.Context, plan.Slot) string { return "it said so" },
		Say:    func(k int, text string) { f.lines = append(f.lines, plan.SlotName(k)+" "+text) },
		Events: events.Log{File: filepath.Join(f.h.Root, "events.jsonl")},
	}
	f.apply(f.plan())
	time.Sleep(2 * time.Millisecond)
	f.register()
	return f
}

// plan returns the plan of the node with its recorded agents.
func (f *fleet) plan() *plan.Plan {
	f.t.Helper()
	agents, err := f.h.ReadAgents()
	must.Do(f.t, err)
	p := slots(f.n).plan(f.t)
	for i := range p.Slots {
		s := &p.Slots[i]
		s.AgentVersion = agents.Of(s.Index)
		p.Dirs = append(p.Dirs,
			plan.Dir{Path: plan.RunDir(s.Index), Mode: 0o711, Owner: "root"},
			plan.Dir{Path: plan.RunDir(s.Index) + "/agent", Mode: 0o700, Owner: s.User})
		if f.drain[s.Index] {
			s.Drains = []plan.Drain{{Slot: s.Index, By: plan.ByOperator}}
		}
		for j := range p.Files {
			if p.Files[j].Path == plan.UnitDir+"/"+plan.AgentUnit(s.Index) {
				p.Files[j].Content = strings.Replace(p.Files[j].Content, "GENERATION=g1", "GENERATION=g1-"+s.AgentVersion, 1)
			}
		}
		for j := range p.Units {
			if p.Units[j].Name == plan.AgentUnit(s.Index) {
				p.Units[j].Generation += "-" + s.AgentVersion
				p.Units[j].Active = s.Serves()
			}
		}
	}
	for _, r := range agents.Releases {
		file := plan.AgentBinary(r.Version)
		p.Files = append(p.Files, plan.File{Path: file, Mode: 0o711, Owner: "root", Source: file, Slot: -1})
	}
	return p
}

// running returns the version that each slot's agent was started with.
func (f *fleet) running() []string {
	f.t.Helper()
	s, _ := f.diff(f.plan())
	var out []string
	for _, ss := range s.Slots {
		v := "none"
		if ss.Agent.Active == "active" {
			v = strings.TrimPrefix(ss.Agent.Generation, "g1-")
			if !f.exists(plan.AgentBinary(v)) && v != "" {
				v += " which is gone"
			}
		}
		out = append(out, v)
	}
	return out
}

// register makes Buildkite register every running agent that can be.
func (f *fleet) register() {
	for k, v := range f.running() {
		file := filepath.Join(f.h.Root, slot.RegisteredMarker(k))
		fi, err := os.Stat(file)
		s, _ := f.diff(f.plan())
		if v == "none" || v == newAgent && f.bad[k] || err == nil && fi.ModTime().After(s.Slots[k].Agent.Since) {
			continue
		}
		must.Do(f.t, slot.Register(filepath.Dir(file)))
	}
}

// mostDown updates most with the number of slots whose agents are not there for jobs.
func (f *fleet) mostDown() {
	s, _ := f.diff(f.plan())
	down := 0
	for _, ss := range s.Slots {
		fi, err := os.Stat(filepath.Join(f.h.Root, slot.RegisteredMarker(ss.Index)))
		if ss.Job == nil && (err != nil || !fi.ModTime().After(ss.Agent.Since)) {
			down++
		}
	}
	f.most = max(f.most, down)
}

func (f *fleet) upgrade(wait bool) ([]plan.Slot, error) {
	f.t.Helper()
	f.fetch()
	must.Do(f.t, f.upg.Begin(f.t.Context(), newAgent, &plan.AgentRelease{Version: newAgent}, 300*time.Millisecond))
	return f.upg.Run(f.t.Context(), wait)
}

func (f *fleet) fetch() {
	f.write(plan.AgentBinary(newAgent), "#!/bin/sh\n")
}

func (f *fleet) agents() plan.Agents {
	f.t.Helper()
	agents, err := f.h.ReadAgents()
	must.Do(f.t, err)
	return agents
}

func (f *fleet) events() []string {
	f.t.Helper()
	var all []string
	must.Do(f.t, f.upg.Events.Read(func(e events.Event) { all = append(all, e.Text) }))
	return all
}

func all(n int, v string) []string { return slices.Repeat([]string{v}, n) }

func TestUpgradeSlotBySlot(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.write(plan.AgentsDir+"/3.90.0/buildkite-agent", "of a run that was cut off")
	if busy, err := f.upgrade(false); err != nil || len(busy) > 0 {
		t.Fatal(busy, err)
	}
	equal(t, "agents", all(3, newAgent), f.running())
	equal(t, "kept", plan.Agents{Version: newAgent, Releases: []plan.AgentRelease{{Version: newAgent}}}, f.agents())
	equal(t, "slots without an agent at once", 1, f.most)
	equal(t, "lines", []string{
		"gpu0 starts agent 3.100.0", "gpu0 registered with agent 3.100.0",
		"gpu1 starts agent 3.100.0", "gpu1 registered with agent 3.100.0",
		"gpu2 starts agent 3.100.0", "gpu2 registered with agent 3.100.0",
	}, f.lines)
	equal(t, "events", []string{
		"agents change from agent to agent 3.100.0",
		"gpu0 runs agent 3.100.0, which has registered", "gpu1 runs agent 3.100.0, which has registered",
		"gpu2 runs agent 3.100.0, which has registered", "all slots run agent 3.100.0",
	}, f.events())
	f.wantAbsent(plan.AgentsDir + "/3.90.0")
	// Back to the installed one: the release is removed.
	must.Do(t, f.upg.Begin(t.Context(), "", nil, time.Minute))
	if _, err := f.upg.Run(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	equal(t, "agents", all(3, ""), f.running())
	f.wantAbsent(plan.AgentsDir)
}

// An agent that does not register takes all slots back: the first one before any other
// has changed, a later one together with those that have.
func TestUpgradeGoesBack(t *testing.T) {
	t.Parallel()
	for bad, touched := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("slot %d", bad), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 3)
			f.bad[bad] = true
			_, err := f.upgrade(true)
			want := fmt.Sprintf("gpu%d did not register with agent 3.100.0: no sign of it within 300ms: it said so; all slots are back at agent ", bad)
			equal(t, "error", want, fmt.Sprint(err))
			equal(t, "agents", all(3, ""), f.running())
			equal(t, "kept", plan.Agents{Releases: []plan.AgentRelease{}}, f.agents())
			events := f.events()
			equal(t, "event", strings.TrimSpace(strings.Replace(want, "are back at", "go back to", 1)), events[len(events)-1])
			restarts := 0
			for _, w := range f.sd.Words() {
				if strings.HasPrefix(w, "stop buildkite-agent") {
					restarts++
				}
			}
			equal(t, "restarts there and back", 2*touched, restarts)
			equal(t, "jobs killed", nil, f.sd.Killed())
		})
	}
}

// A unit that cannot start is treated like an agent that does not register.
func TestUpgradeToWhatDoesNotStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.sd.Hook = func(word string) error {
		if word == "start "+plan.AgentUnit(0) && f.agents().Of(0) == newAgent {
			return &systemd.UnitError{Unit: plan.AgentUnit(0), Verb: "start", Err: errors.New("exec format error")}
		}
		return nil
	}
	_, err := f.upgrade(false)
	must.Err(t, err, "gpu0 did not register with agent 3.100.0: ")
	must.Err(t, err, "exec format error")
	equal(t, "agents", all(2, ""), f.running())
}

// A slot that was broken before holds up no other one. To leave it out, drain it.
func TestUpgradeBesideABrokenSlot(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	must.Do(t, f.sd.Fail(plan.AgentUnit(1)))
	f.sd.Hook = failing("start "+plan.AgentUnit(1), &systemd.UnitError{Unit: plan.AgentUnit(1), Verb: "start", Err: errNo})
	if _, err := f.upgrade(false); err == nil || !strings.Contains(err.Error(), "gpu1 did not register") {
		t.Fatal(err)
	}
	after := f.running()
	equal(t, "agents", []string{"", ""}, []string{after[0], after[2]})
	f.drain[1] = true
	if _, err := f.upgrade(false); err != nil {
		t.Fatal(err)
	}
	equal(t, "agents", []string{newAgent, "none", newAgent}, f.running())
}

// A busy slot finishes its job and then changes: with wait the run continues until then,
// without it someone else makes the change.
func TestUpgradeWaitsForJobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		wait bool
		busy []int
	}{
		{"one is left to the daemon", false, []int{1}},
		{"one is waited for", true, []int{1}},
		{"all are left to the daemon", false, []int{0, 1, 2}},
		{"all are waited for", true, []int{0, 1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 3)
			for _, k := range tt.busy {
				f.run(k)
			}
			finish := func() {
				for _, k := range tt.busy {
					f.finish(k)
				}
			}
			if tt.wait {
				f.onGo = func(waits int) {
					if waits == 8 {
						finish()
					}
				}
			}
			left, err := f.upgrade(tt.wait)
			must.Do(t, err)
			if !tt.wait {
				equal(t, "slots left", len(tt.busy), len(left))
				if f.agents().Roll == nil {
					t.Fatal("nobody knows what is left")
				}
				finish()
				// The daemon's pass, and then its look at the upgrade.
				f.apply(f.plan())
				time.Sleep(2 * time.Millisecond)
				if left, err = f.upg.Run(t.Context(), false); err != nil || len(left) > 0 {
					t.Fatal(left, err)
				}
			}
			equal(t, "agents", all(3, newAgent), f.running())
			equal(t, "jobs killed", nil, f.sd.Killed())
			if f.agents().Roll != nil {
				t.Error("the upgrade has not ended")
			}
		})
	}
}

// stopping is a systemd in which all agents stop, and no job runs.
type stopping struct{ *systemdtest.Systemd }

func (s stopping) Units(ctx context.Context, names ...string) ([]slot.Unit, error) {
	units, err := s.Systemd.Units(ctx, names...)
	for i := range units {
		if strings.HasPrefix(units[i].Name, "buildkite-agent-") {
			units[i].Active = "deactivating"
		}
	}
	return units, err
}

// An agent that stops is not idle: one slot tries the new version, and the others wait.
func TestUpgradeOfStoppingAgents(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.h.Systemd = stopping{f.sd}
	left, err := f.upgrade(false)
	must.Do(t, err)
	equal(t, "slots left", 2, len(left))
	equal(t, "slots that try it", []int{0}, f.agents().Roll.Slots)
	equal(t, "lines", []string{"gpu0 changes when its job is done"}, f.lines)
}

// A drained slot has no agent that could register: it is left out, and has the new
// version when it is back.
func TestUpgradeLeavesDrainedSlotsOut(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.drain[0] = true
	f.apply(f.plan())
	if _, err := f.upgrade(true); err != nil {
		t.Fatal(err)
	}
	equal(t, "agents", []string{"none", newAgent, newAgent}, f.running())
	f.drain[0] = false
	f.apply(f.plan())
	equal(t, "agents after resume", all(3, newAgent), f.running())
	if _, err := f.h.Uninstall(t.Context(), nil); err != nil || f.exists(plan.AgentsDir) || f.exists(plan.AgentsPath) {
		t.Errorf("uninstall leaves agents: %v", err)
	}
}

// A drained slot that finishes a job still runs the previous release, which is kept until
// that agent has stopped.
func TestUpgradeKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	if _, err := f.upgrade(true); err != nil {
		t.Fatal(err)
	}
	f.run(0)
	f.drain[0] = true
	f.apply(f.plan())
	must.Do(t, f.upg.Begin(t.Context(), "", nil, time.Minute))
	if _, err := f.upg.Run(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if !f.exists(plan.AgentBinary(newAgent)) {
		t.Error("the agent of a running job is gone")
	}
	f.finish(0)
	if _, err := f.upg.Run(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	f.wantAbsent(plan.AgentsDir)
}

// Interrupted anywhere, each slot has an agent after the daemon's pass, and the same
// command again completes the upgrade.
func TestUpgradeCutOff(t *testing.T) {
	t.Parallel()
	prepare := func(t *testing.T) *fleet {
		f := newFleet(t, 3)
		f.run(2)
		f.fetch()
		return f
	}
	whole, steps := prepare(t), 0
	whole.h.OnStep(func(string) error { steps++; return nil })
	if _, err := whole.upgrade(false); err != nil {
		t.Fatal(err)
	}
	if steps < 15 {
		t.Fatalf("only %d steps to interrupt", steps)
	}
	for n := range steps {
		f := prepare(t)
		if f.killAt(n, func() { _, _ = f.upgrade(false) }) {
			t.Fatalf("step %d was not reached", n)
		}
		f.apply(f.plan())
		for k, v := range f.running() {
			if k != 2 && v != "" && v != newAgent {
				t.Fatalf("cut off at step %d: slot %d runs %q", n, k, v)
			}
		}
		f.finish(2)
		if left, err := f.upgrade(true); err != nil || len(left) > 0 {
			t.Fatalf("cut off at step %d: %v, %v", n, left, err)
		}
		equal(t, fmt.Sprintf("agents after step %d", n), all(3, newAgent), f.running())
		equal(t, "kept", plan.Agents{Version: newAgent, Releases: []plan.AgentRelease{{Version: newAgent}}}, f.agents())
		equal(t, "jobs killed", nil, f.sd.Killed())
	}
}

// What someone else decides meanwhile holds.
func TestUpgradeGivesWay(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.onGo = func(waits int) {
		if waits == 1 {
			must.Do(t, f.h.WriteAgents(plan.Agents{}))
		}
	}
	if _, err := f.upgrade(true); err == nil || !strings.Contains(err.Error(), "another command") {
		t.Fatal(err)
	}
}
