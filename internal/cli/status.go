package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/daemon"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// watchPeriod is how often --watch looks.
const watchPeriod = 2 * time.Second

// slotStatus is one slot in the JSON of kbnode status.
type slotStatus struct {
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

// nodeStatus is the JSON of kbnode status.
type nodeStatus struct {
	Node     string             `json:"node"`
	Slots    []slotStatus       `json:"slots"`
	Health   []health.Verdict   `json:"health"` // of the daemon's last pass
	Warnings []string           `json:"warnings"`
	Changes  []reconcile.Change `json:"changes"`
}

func newStatus(s Streams) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each slot, its agent and job, and what differs from the plan",
		Long: `Show each slot, its agent and job, and what differs from the plan.

Exit code 0 if every slot is as planned, 1 if something differs or this machine is
not a node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				st, err := readStatus(cmd.Context(), s)
				if err != nil {
					return err
				}
				if asJSON {
					err = printJSON(s.Out, st)
				} else {
					if watch {
						again := map[bool]string{true: "\x1b[H\x1b[2J", false: "\n"}
						printf(s.Out, "%s", again[cursor(s.Out) > 0])
					}
					printStatus(s.Out, st, time.Now())
				}
				if err != nil || !watch {
					if err == nil && st.disagrees() {
						return &exitError{code: exitNo}
					}
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(watchPeriod):
				}
			}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every two seconds, until interrupted")
	return cmd
}

func (st nodeStatus) disagrees() bool {
	for _, s := range st.Slots {
		if len(s.Problems) > 0 {
			return true
		}
	}
	return len(st.Changes) > 0
}

func readStatus(ctx context.Context, s Streams) (nodeStatus, error) {
	if os.Geteuid() != 0 {
		return nodeStatus{}, errors.New("status must run as root; type sudo kbnode status")
	}
	m := &machine{root: "/"}
	if _, err := os.Stat(plan.BindingsPath); errors.Is(err, fs.ErrNotExist) {
		return nodeStatus{}, errors.New("this machine is not set up as a node; type sudo kbnode install --queue NAME")
	}
	if err := m.loadConfig(&wishes{}, func(string) string { return "" }); err != nil {
		return nodeStatus{}, err
	}
	if err := m.read(ctx, s.logger()); err != nil {
		return nodeStatus{}, err
	}
	if err := m.think(); err != nil {
		return nodeStatus{}, err
	}
	host, closeHost, err := openHost(ctx, s)
	if err != nil {
		return nodeStatus{}, err
	}
	defer closeHost()
	host.GPUs = m.inv.GPUs
	state, err := host.Observe(ctx, m.plan)
	if err != nil {
		return nodeStatus{}, err
	}
	st := statusOf(m.plan, state, reconcile.Diff(m.plan, state))
	for i, sl := range m.plan.Slots {
		if why := agentProblem(ctx, sl, state.Slot(sl.Index), time.Now(), agent.Journal); why != "" {
			st.Slots[i].Problems = append(st.Slots[i].Problems, why)
		}
	}
	if roll := m.agents.Roll; roll != nil {
		st.Warnings = append(st.Warnings, fmt.Sprintf("agents are changing to %s: %d of %d slots have registered with it",
			versionName(m.inv.Software.Agent)(roll.To), len(roll.Registered), len(m.plan.Slots)))
	}
	st.Warnings = append(st.Warnings, plan.SayUnread(m.inv)...)
	kept, err := daemon.ReadHealth("/")
	if err != nil {
		st.Warnings = append(st.Warnings, err.Error())
	}
	return st.withHealth(kept.Verdicts), nil
}

// withHealth adds verdicts. Those that drain a slot are already in its status.
func (st nodeStatus) withHealth(verdicts []health.Verdict) nodeStatus {
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

// statusOf returns the status of what was read.
func statusOf(p *plan.Plan, state *reconcile.State, changes []reconcile.Change) nodeStatus {
	st := nodeStatus{Node: p.Node, Slots: []slotStatus{}, Health: []health.Verdict{}, Warnings: append([]string{}, state.Warnings...), Changes: append([]reconcile.Change{}, changes...)}
	for _, s := range p.Slots {
		ss := state.Slot(s.Index)
		row := slotStatus{
			Slot: s.Name, Index: s.Index, GPU: s.Model(), UUID: strings.Join(s.Each(plan.SlotGPU.Name), ","), PCI: strings.Join(s.Each(pciOf), ","),
			Shape: s.Shape, Queue: s.Queue,
			CPUs: s.CPUs, MemoryBytes: s.MemoryBytes,
			Agent: ss.Word(s), Since: ss.Agent.Since, Job: ss.Job, Problems: []string{},
		}
		if ss.Job != nil {
			row.Since = ss.Job.Since
		}
		row.Drains = s.Drains
		for _, d := range s.Drains {
			if d.By != plan.ByOperator { // an operator's drain is wanted
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

func printStatus(w io.Writer, st nodeStatus, now time.Time) {
	t := newList(w, "Slot", "GPU", "Queue", "CPUs", "Memory", "Agent", "Job", "Since", "Problem")
	t.spare = []string{"Memory", "CPUs", "GPU", "Queue"}
	for _, s := range st.Slots {
		job := "-"
		if s.Job != nil {
			job = cmp.Or(s.Job.Pipeline, s.Job.ID)
			if s.Job.Build != "" {
				job += "#" + s.Job.Build
			}
		}
		problem := "-"
		if len(s.Problems) > 0 {
			problem = s.Problems[0]
			if n := len(s.Problems) - 1; n > 0 {
				problem += fmt.Sprintf(" (and %d more)", n)
			}
		} else if len(s.Drains) > 0 {
			problem = s.Drains[0].String()
		}
		t.row(s.Slot, cmp.Or(s.GPU, "-"), s.Queue, s.CPUs, bytesText(s.MemoryBytes), paintAgent(w, s.Agent), job, ago(s.Since, now), problem)
	}
	t.print()
	if len(st.Warnings) > 0 {
		printf(w, "\n")
	}
	for _, warning := range st.Warnings {
		printf(w, "%s %s\n", paint(w, text.FgYellow, "warning:"), warning)
	}
}

func paintAgent(w io.Writer, word string) string {
	switch word {
	case "idle":
		return paint(w, text.FgGreen, word)
	case "busy", "draining", "drained", "starting", "stopping":
		return paint(w, text.FgYellow, word)
	default:
		return paint(w, text.FgRed, word)
	}
}

// ago returns a time as people say it: "3m", "2h10m", "5d".
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(0, now.Sub(t)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
