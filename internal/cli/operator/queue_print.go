package operator

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// PrintQueues writes a report for people: a line per node, or per agent, and the sums last.
func PrintQueues(w io.Writer, report buildkite.QueueReport, agents bool) {
	for i, q := range report.Queues {
		if i > 0 {
			term.Printf(w, "\n")
		}
		switch {
		case agents && len(q.Agents) > 0:
			QueueTable(w, q, report.Time).Print()
		case !agents && len(q.Nodes) > 0:
			NodeTable(w, q, report.Time).Print()
		}
		if !agents { // at the end, where no long list hides them
			for _, n := range worstFirst(q) {
				_, reasons := outOf(w, n, report.Time)
				for _, line := range reasons {
					term.Printf(w, "%s\n", line)
				}
			}
		}
		for _, a := range q.Agents {
			if agents && a.Note != "" {
				term.Printf(w, "%s is %s: %s\n", a.Name, a.State, a.Note)
			}
		}
		warning := term.PaintWord(w, "warning:")
		if others := otherVersions(q); others != "" {
			term.Printf(w, "%s these nodes have another kbnode than the rest: %s\n", warning, others)
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			term.Printf(w, "%s %d waiting %s for tags that no agent here has: %s\n", warning,
				n, text.Plural(n, "job asks", "jobs ask"), strings.Join(q.Waiting.Missing, ", "))
		}
		if q.WhyIdle != "" {
			term.Printf(w, "%s jobs wait although slots are idle: %s\n", warning, q.WhyIdle)
		}
		term.Printf(w, "%s\n", queueSummary(q, report.Time))
	}
}

func otherVersions(q buildkite.Queue) string {
	var names []string
	for _, n := range q.Nodes {
		if n.OtherVersion {
			names = append(names, n.Node)
		}
	}
	return buildkite.Named(q.Name, names)
}

func queueSummary(q buildkite.Queue, now time.Time) string {
	slots, idle, busy := 0, 0, 0
	for _, n := range q.Nodes {
		slots, idle, busy = slots+n.Slots, idle+n.Idle, busy+n.Busy
	}
	sums := fmt.Sprintf("%s: %s, %s: %d idle, %d busy", q.Name, text.Count(len(q.Nodes), "node"), text.Count(slots, "slot"), idle, busy)
	if d := q.Count(buildkite.Draining); d > 0 {
		sums += fmt.Sprintf(" (%d draining)", d)
	}
	if out := slots - idle - busy; out > 0 {
		sums += fmt.Sprintf(", %d out of service", out)
	}
	switch w := q.Waiting; w.Jobs {
	case 0:
		return sums + "; no jobs waiting"
	case 1:
		return sums + "; 1 job waiting, for " + term.Ago(w.Oldest, now)
	default:
		return fmt.Sprintf("%s; %d jobs waiting, the oldest for %s", sums, w.Jobs, term.Ago(w.Oldest, now))
	}
}

// NodeTable returns a queue's nodes as a table, those with the most slots out of service first.
func NodeTable(w io.Writer, q buildkite.Queue, now time.Time) *term.List {
	l := term.NewList(w, "Node", "Slots", "Idle", "Busy", "Out", "Last job", "kbnode", "Out of service")
	l.Spare = []string{"kbnode", "Last job"}
	l.Most = map[string]int{"Node": 24, "kbnode": 16}
	for _, n := range worstFirst(q) {
		version := cmp.Or(n.KbnodeVersion, "-")
		if n.OtherVersion {
			version += " *"
		}
		slots, _ := outOf(w, n, now)
		l.Row(n.Node, n.Slots, n.Idle, n.Busy, out(n), term.Ago(n.LastJob, now), version, slots)
	}
	return l
}

// worstFirst returns a queue's nodes, those with the most slots out of service first.
func worstFirst(q buildkite.Queue) []buildkite.QueueNode {
	nodes := slices.Clone(q.Nodes)
	slices.SortStableFunc(nodes, func(a, b buildkite.QueueNode) int {
		if a.OtherVersion != b.OtherVersion && out(a) == out(b) {
			return map[bool]int{true: -1, false: 1}[a.OtherVersion]
		}
		return cmp.Or(cmp.Compare(out(b), out(a)), cmp.Compare(a.Node, b.Node))
	})
	return nodes
}

func out(n buildkite.QueueNode) int { return n.Slots - n.Idle - n.Busy }

// outOf says which slots of a node take no jobs, and reasons why, a line for each reason.
func outOf(w io.Writer, n buildkite.QueueNode, now time.Time) (slots string, reasons []string) {
	if !n.Seen.IsZero() {
		return term.PaintWord(w, "gone") + " for " + term.Ago(n.Seen, now), nil
	}
	var all []string
	for _, group := range term.Grouped(n.Out, func(s buildkite.QueueSlot) [2]string { return [2]string{s.State, reason(s, now)} }) {
		var names []string
		for _, s := range group {
			if s.Slot != "" {
				names = append(names, s.Slot)
			}
		}
		if unnamed := len(group) - len(names); unnamed > 0 {
			names = append(names, text.Count(unnamed, "slot"))
		}
		who := strings.Join(names, " ")
		if len(group) == n.Slots {
			who = "all"
		}
		who += " " + term.PaintWord(w, group[0].State)
		if why := reason(group[0], now); why != "" {
			reasons = append(reasons, fmt.Sprintf("%s %s: %s", n.Node, who, why))
		}
		all = append(all, who)
	}
	return cmp.Or(strings.Join(all, ", "), "-"), reasons
}

func reason(s buildkite.QueueSlot, now time.Time) string {
	switch {
	case s.State != buildkite.Missing:
		return s.Reason
	case s.Seen.IsZero():
		return "no agent is connected"
	default:
		return "no agent is connected for " + term.Ago(s.Seen, now)
	}
}

// QueueTable returns a queue's agents as a table.
func QueueTable(w io.Writer, q buildkite.Queue, now time.Time) *term.List {
	l := term.NewList(w, "Agent", "State", "For", "Job", "GPU", "Model", "Node", "Version", "kbnode")
	l.Spare = []string{"Node", "kbnode", "Version", "Model"}
	l.Most = map[string]int{"Agent": 28, "Job": 24, "Model": 20, "Node": 20, "Version": 20, "kbnode": 20}
	for _, a := range q.Agents {
		since, job, gpu := "-", "", "-"
		if a.Job != nil {
			since, job = term.Ago(a.Job.Started, now), a.Job.ID
			if a.Job.Build > 0 {
				job = fmt.Sprintf("%s#%d", a.Job.Pipeline, a.Job.Build)
			}
		}
		if a.GPUIndex != nil {
			gpu = strconv.Itoa(*a.GPUIndex)
		}
		row := []any{a.Name, term.PaintWord(w, a.State), since}
		for _, cell := range []string{job, gpu, a.GPUModel, a.Node, a.AgentVersion, a.KbnodeVersion} {
			row = append(row, cmp.Or(cell, "-"))
		}
		l.Row(row...)
	}
	return l
}
