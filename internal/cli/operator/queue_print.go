package operator

import (
	"bytes"
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

// QueueView says how people see a report.
type QueueView struct {
	Agents bool // a line per agent and per waiting job, not per node
	Part   bool // nodes were left out
	Lines  int  // into which it should fit; 0 means no limit
}

// PrintQueues writes a report for people: a line per node, or per agent, and the sums last.
func PrintQueues(w io.Writer, report buildkite.QueueReport, v QueueView) {
	d := &term.Draft{To: w}
	v.print(d, report, false)
	if v.Lines > 0 && !v.Agents && bytes.Count(d.Bytes(), []byte("\n")) > v.Lines {
		d.Reset()
		v.print(d, report, true)
	}
	term.Verbatim(w, d.String())
}

// print writes a report. fold leaves out nodes with all slots in service, and counts them.
func (v QueueView) print(w io.Writer, report buildkite.QueueReport, fold bool) {
	for i, q := range report.Queues {
		if i > 0 {
			term.Printf(w, "\n")
		}
		if v.Agents {
			printAgents(w, q, report.Time)
		} else {
			printNodes(w, q, report.Time, fold)
		}
		for _, n := range worstFirst(q) { // below the table, where no long list hides them
			_, reasons := outOf(w, n, report.Time)
			for _, line := range reasons {
				term.Printf(w, "%s\n", line)
			}
		}
		warning := term.PaintWord(w, "warning:")
		for _, others := range otherVersions(q) {
			term.Printf(w, "%s %s\n", warning, others)
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			term.Printf(w, "%s %d waiting %s for tags that no agent here has: %s\n", warning,
				n, text.Plural(n, "job asks", "jobs ask"), strings.Join(q.Waiting.Missing, ", "))
		}
		if q.WhyIdle != "" {
			term.Printf(w, "%s jobs wait although slots are idle: %s\n", warning, q.WhyIdle)
		}
		term.Printf(w, "%s\n", v.summary(q, report.Time))
	}
}

func printNodes(w io.Writer, q buildkite.Queue, now time.Time, fold bool) {
	shown := q
	if fold {
		shown.Nodes = slices.DeleteFunc(slices.Clone(q.Nodes), func(n buildkite.QueueNode) bool { return out(n) == 0 })
	}
	folded := len(q.Nodes) - len(shown.Nodes)
	if folded == 1 { // its row takes no more room
		shown, folded = q, 0
	}
	what := "node"
	if len(shown.Nodes) > 0 {
		NodeTable(w, shown, now).Print()
		what = "more node"
	}
	if folded > 0 {
		term.Printf(w, "%s with all slots in service\n", text.Count(folded, what))
	}
}

func printAgents(w io.Writer, q buildkite.Queue, now time.Time) {
	if len(q.Agents) > 0 {
		QueueTable(w, q, now).Print()
	}
	if len(q.Waiting.List) > 0 {
		waitingTable(w, q, now).Print()
	}
	for _, a := range q.Agents {
		if a.State == buildkite.Draining && a.Note != "" { // its slot is not out of service yet
			term.Printf(w, "%s is %s: %s\n", a.Name, a.State, a.Note)
		}
	}
}

// otherVersions says which nodes have another kbnode than most nodes of a queue, a line for each version.
func otherVersions(q buildkite.Queue) (lines []string) {
	usual := ""
	var others []buildkite.QueueNode
	for _, n := range q.Nodes {
		if n.OtherVersion {
			others = append(others, n)
		} else if n.Seen.IsZero() { // one that is gone has what it had
			usual = cmp.Or(n.KbnodeVersion, usual)
		}
	}
	for _, group := range term.Grouped(others, func(n buildkite.QueueNode) string { return n.KbnodeVersion }) {
		var names []string
		for _, n := range group {
			names = append(names, n.Node)
		}
		line := fmt.Sprintf("%s %s kbnode %s, most nodes another one", buildkite.Named(q.Name, names), text.Plural(len(names), "has", "have"), group[0].KbnodeVersion)
		if usual != "" { // --node may have left out all that have it
			line = strings.TrimSuffix(line, "another one") + usual
		}
		lines = append(lines, line)
	}
	return lines
}

func (v QueueView) summary(q buildkite.Queue, now time.Time) string {
	slots, idle, busy, absent := 0, 0, 0, 0
	for _, n := range q.Nodes {
		slots, idle, busy = slots+n.Slots, idle+n.Idle, busy+n.Busy
		if !n.Seen.IsZero() {
			absent++
		}
	}
	nodes := text.Count(len(q.Nodes), "node")
	if absent > 0 {
		nodes += fmt.Sprintf(" (%d gone)", absent)
	}
	sums := fmt.Sprintf("%s: %s, %s: %d idle, %d busy", q.Name, nodes, text.Count(slots, "slot"), idle, busy)
	if d := q.Count(buildkite.Draining); d > 0 {
		sums += fmt.Sprintf(" (%d draining)", d)
	}
	if out := slots - idle - busy; out > 0 {
		sums += fmt.Sprintf(", %d out of service", out)
	}
	in := ""
	if v.Part {
		in = " in the whole queue"
	}
	switch w := q.Waiting; w.Jobs {
	case 0:
		return sums + "; no jobs waiting" + in
	case 1:
		return fmt.Sprintf("%s; 1 job waiting%s, for %s", sums, in, term.Ago(w.Oldest, now))
	default:
		return fmt.Sprintf("%s; %d jobs waiting%s, the oldest for %s", sums, w.Jobs, in, term.Ago(w.Oldest, now))
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
		state := term.PaintWord(w, buildkite.Gone)
		why := fmt.Sprintf("%s %s: no agent is connected for %s", n.Node, state, term.Ago(n.Seen, now))
		if !n.LastJob.IsZero() {
			why += fmt.Sprintf(", last job %s ago", term.Ago(n.LastJob, now))
		}
		if len(n.Out) > 0 && n.Out[0].Reason != "" {
			why += "; " + n.Out[0].Reason
		}
		return state + " for " + term.Ago(n.Seen, now), []string{why}
	}
	var all []string
	for _, group := range term.Grouped(n.Out, func(s buildkite.QueueSlot) [3]string {
		return [3]string{s.State, term.Ago(s.Since, now), reason(s, now)}
	}) {
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
			since := ""
			if !group[0].Since.IsZero() {
				since = " for " + term.Ago(group[0].Since, now)
			}
			reasons = append(reasons, fmt.Sprintf("%s %s%s: %s", n.Node, who, since, why))
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
	l := term.NewList(w, "Agent", "State", "For", "Job", "GPU", "Model", "Node", "Agent version", "kbnode")
	l.Spare = []string{"Node", "kbnode", "Agent version", "Model"}
	l.Most = map[string]int{"Agent": 28, "Job": 24, "Model": 20, "Node": 20, "Agent version": 20, "kbnode": 20}
	for _, a := range q.Agents {
		since, job, gpu := "-", "", "-"
		if a.Job != nil {
			since, job = term.Ago(a.Job.Started, now), jobName(a.Job.ID, a.Job.Pipeline, a.Job.Build)
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

// waitingTable returns the jobs that wait in a queue, the next one first.
func waitingTable(w io.Writer, q buildkite.Queue, now time.Time) *term.List {
	l := term.NewList(w, "Waiting", "Priority", "For", "Job")
	l.Most = map[string]int{"Waiting": 24}
	for _, j := range q.Waiting.List {
		l.Row(jobName(j.ID, j.Pipeline, j.Build), j.Priority, term.Ago(j.Since, now), cmp.Or(j.Name, "-"))
	}
	return l
}

// jobName names a job by its build, if that is known.
func jobName(id, pipeline string, build int) string {
	if build > 0 {
		return fmt.Sprintf("%s#%d", pipeline, build)
	}
	return id
}
