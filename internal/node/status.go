package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// SlotStatus is one slot in the JSON of kbnode status.
type SlotStatus struct {
	Slot        string       `json:"slot"`
	Index       int          `json:"index"`
	GPU         string       `json:"gpu"`
	UUID        string       `json:"uuid"`
	PCI         string       `json:"pci"`
	Shape       string       `json:"shape"` // as plan.Slot has it
	Queue       string       `json:"queue"`
	CPUs        string       `json:"cpus"`
	MemoryBytes int64        `json:"memory_bytes"`
	Agent       string       `json:"agent"` // one of slot.Words
	Since       time.Time    `json:"since,omitzero"`
	Job         *slot.Job    `json:"job,omitempty"`
	Drains      []plan.Drain `json:"drains,omitempty"` // who wants the slot to take no jobs
	Problems    []string     `json:"problems"`         // what disagrees with the plan
}

// Status is the JSON of kbnode status.
type Status struct {
	Node     string             `json:"node"`
	Recorded string             `json:"recorded,omitempty"` // the file, if it is a recorded machine's
	Slots    []SlotStatus       `json:"slots"`
	Health   []health.Verdict   `json:"health"` // of the daemon's last pass
	Warnings []string           `json:"warnings"`
	Changes  []reconcile.Change `json:"changes"`
	// Unplanned is why the node cannot be planned: its configuration has a typo, a GPU is missing, … "" if it can.
	Unplanned string `json:"unplanned,omitempty"`
}

// Disagrees reports whether something differs from the plan.
func (st Status) Disagrees() bool {
	for _, s := range st.Slots {
		if len(s.Problems) > 0 {
			return true
		}
	}
	return len(st.Changes) > 0 || st.Unplanned != ""
}

// ReadStatus returns the status of this machine, which must be a node.
func (n *Node) ReadStatus(ctx context.Context) (Status, error) {
	if n.Recorded {
		return n.recordedStatus(ctx)
	}
	host, err := n.Open(ctx)
	if err != nil {
		return Status{}, err
	}
	defer host.Close()
	return n.readStatus(ctx, host.Host, agent.Journal)
}

func (n *Node) readStatus(ctx context.Context, host *reconcile.Host, journal func(context.Context, string, int) ([]string, error)) (Status, error) {
	why, err := n.refreshOrRecall(ctx, host, n.Inspect)
	if err != nil {
		return Status{}, err
	}
	state, changes, err := n.Compare(ctx, host)
	if err != nil {
		return Status{}, err
	}
	if why != nil {
		changes = nil // the plan has only the slots
	}
	st := StatusOf(n.Plan, state, changes)
	if why != nil {
		st.Unplanned = why.Error()
		st.Warnings = append(st.Warnings, "this node cannot be planned, so nothing is compared: "+oneLine(why))
	}
	for i, sl := range n.Plan.Slots {
		if why := agentProblem(ctx, sl, state.Slot(sl.Index), time.Now(), journal); why != "" {
			st.Slots[i].Problems = append(st.Slots[i].Problems, why)
		}
	}
	st.Warnings = append(st.Warnings, n.ends(state, time.Now())...)
	st.Warnings = append(st.Warnings, n.HookWarnings()...)
	st.Warnings = append(st.Warnings, n.metricsFault(state, time.Now())...)
	st.Warnings = append(st.Warnings, plan.SayUnread(n.Inventory)...)
	stored, err := daemon.ReadHealth(n.Root)
	if err != nil {
		st.Warnings = append(st.Warnings, err.Error())
	}
	return st.withHealth(stored.Verdicts), nil
}

// metricsFault returns why node_exporter does not get metrics of a daemon that runs.
func (n *Node) metricsFault(state *reconcile.State, now time.Time) []string {
	dir, unit := n.Config.Metrics.Textfile, state.Units[plan.NodeService]
	if dir == "" || !unit.Running() {
		return nil
	}
	err := textfile.Check(n.Root, dir, unit.Since, now)
	if err == nil || errors.Is(err, fs.ErrPermission) { // for an ordinary user
		return nil
	}
	return []string{"metrics.textfile: " + err.Error()}
}

// withHealth adds verdicts. Those that drain a slot are already in its status.
func (st Status) withHealth(verdicts []health.Verdict) Status {
	st.Health = append(st.Health, verdicts...)
	for _, v := range verdicts {
		if v.Level < health.Warn || v.Effect != health.None {
			continue
		}
		var about []string
		for _, k := range v.Slots {
			about = append(about, plan.SlotName(k))
		}
		about = append(about, fmt.Sprintf("%s: %s; %s", v.Check, v.Reason, v.Fix))
		st.Warnings = append(st.Warnings, strings.Join(about, ", "))
	}
	return st
}

// StatusOf returns the status of what was read.
func StatusOf(p *plan.Plan, state *reconcile.State, changes []reconcile.Change) Status {
	st := Status{Node: p.Node, Slots: []SlotStatus{}, Health: []health.Verdict{}, Warnings: append([]string{}, state.Warnings...), Changes: append([]reconcile.Change{}, changes...)}
	for _, s := range p.Slots {
		ss := state.Slot(s.Index)
		row := SlotStatus{
			Slot: s.Name, Index: s.Index, GPU: s.Model(), UUID: strings.Join(s.Each(plan.SlotGPU.Name), ","), PCI: strings.Join(s.Each(func(g plan.SlotGPU) string { return g.PCI }), ","),
			Shape: s.Shape, Queue: s.Queue,
			CPUs: s.CPUs, MemoryBytes: s.MemoryBytes,
			Agent: ss.Word(s), Since: ss.Agent.Since, Job: ss.Job, Problems: []string{},
		}
		if ss.Job != nil {
			row.Since = ss.Job.Since
		}
		row.Drains = s.Drains
		for _, d := range s.Drains {
			if !d.Wanted() {
				row.Problems = append(row.Problems, d.String())
			}
		}
		if row.Agent == "drained" {
			row.Since = s.Drains[0].Since
		}
		if s.Parked != "" {
			row.Problems = append(row.Problems, s.Parked)
		}
		for _, why := range ss.Parked {
			row.Problems = append(row.Problems, why.Reason)
			if row.Agent == "parked" {
				row.Since = why.Since
			}
		}
		for _, c := range changes {
			if c.Slot == s.Index {
				row.Problems = append(row.Problems, c.String())
			}
		}
		st.Slots = append(st.Slots, row)
	}
	for _, c := range changes {
		if c.Slot < 0 {
			st.Warnings = append(st.Warnings, c.String())
		}
	}
	return st
}

// agentProblem returns why a slot's agent does not come up: how its last run ended, how often
// systemd has restarted it, and what it said last. It returns "" if nothing is wrong.
func agentProblem(ctx context.Context, sl plan.Slot, ss slot.State, now time.Time, journal func(context.Context, string, int) ([]string, error)) string {
	why := ss.Disconnected(sl, now)
	if why == "" {
		return ""
	}
	a := ss.Agent
	if a.Result != "" && a.Result != "success" {
		why += fmt.Sprintf("; it ended with %s, exit status %d", a.Result, a.ExitStatus)
	}
	if a.Restarts > 0 {
		why += fmt.Sprintf("; restarted %d times", a.Restarts)
	}
	lines, err := journal(ctx, plan.AgentUnit(sl.Index), journalLines)
	if err != nil {
		return why // it names journalctl
	}
	return why + "; its last message: " + cmp.Or(agent.LastWords(lines), "nothing")
}
