package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/text"
)

// queueMost is the maximum length of names on a terminal, in characters.
var queueMost = map[string]int{"Agent": 28, "Job": 24, "Model": 20, "Node": 20, "Version": 20, "kbnode": 20}

// queueColumns are the table's columns and what they show of an agent.
var queueColumns = []struct {
	title string
	cell  func(a buildkite.QueueAgent, now time.Time) string
}{
	{"Agent", func(a buildkite.QueueAgent, _ time.Time) string { return a.Name }},
	{"State", func(a buildkite.QueueAgent, _ time.Time) string { return a.State }},
	{"For", func(a buildkite.QueueAgent, now time.Time) string {
		if a.Job == nil {
			return ""
		}
		return ago(a.Job.Started, now)
	}},
	{"Job", func(a buildkite.QueueAgent, _ time.Time) string {
		switch j := a.Job; {
		case j == nil:
			return ""
		case j.Build > 0:
			return fmt.Sprintf("%s#%d", j.Pipeline, j.Build)
		default:
			return j.ID
		}
	}},
	{"GPU", func(a buildkite.QueueAgent, _ time.Time) string {
		if a.GPUIndex == nil {
			return ""
		}
		return strconv.Itoa(*a.GPUIndex)
	}},
	{"Model", func(a buildkite.QueueAgent, _ time.Time) string { return a.GPUModel }},
	{"Node", func(a buildkite.QueueAgent, _ time.Time) string { return a.Node }},
	{"Version", func(a buildkite.QueueAgent, _ time.Time) string { return a.AgentVersion }},
	{"kbnode", func(a buildkite.QueueAgent, _ time.Time) string { return a.KbnodeVersion }},
}

// queueSpare are the columns to omit on a narrow terminal, first to last.
var queueSpare = []string{"Node", "kbnode", "Version", "Model"}

func (v *queueView) print(report buildkite.QueueReport) {
	for i, q := range report.Queues {
		if i > 0 {
			printf(v.s.Out, "\n")
		}
		printf(v.s.Out, "%s\n", queueSummary(q, report.Time))
		if len(q.Agents) > 0 {
			v.table(q, report.Time).print()
		}
		for _, a := range q.Agents {
			if a.Note != "" {
				printf(v.s.Out, "%s is paused: %s\n", a.Name, a.Note)
			}
		}
		for _, n := range q.Lacking {
			printf(v.s.Out, "%s %d of the %d slots of %s have an agent; sudo kbnode status there says why: drained, parked, failed, or between two jobs\n",
				paint(v.s.Out, pretty.FgYellow, "warning:"), n.Agents, n.Slots, n.Node)
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			printf(v.s.Out, "%s %d waiting %s for tags that no agent here has: %s\n", paint(v.s.Out, pretty.FgYellow, "warning:"),
				n, text.Plural(n, "job asks", "jobs ask"), strings.Join(q.Waiting.Missing, ", "))
		}
	}
}

// queueSummary returns a queue in one line.
func queueSummary(q buildkite.Queue, now time.Time) string {
	busy, n := q.Count(buildkite.Busy, buildkite.Draining), len(q.Agents)
	part := []string{fmt.Sprintf("%s: %d %s", q.Name, n, text.Plural(n, "agent", "agents")), fmt.Sprintf("%d idle", q.Count(buildkite.Idle)), fmt.Sprintf("%d busy", busy)}
	if d := q.Count(buildkite.Draining); d > 0 {
		part[2] += fmt.Sprintf(" (%d draining)", d)
	}
	for _, state := range []string{buildkite.Paused, buildkite.Stopping} {
		if c := q.Count(state); c > 0 {
			part = append(part, fmt.Sprintf("%d %s", c, state))
		}
	}
	waits := "no jobs waiting"
	switch w := q.Waiting; {
	case w.Jobs == 1:
		waits = "1 job waiting, for " + ago(w.Oldest, now)
	case w.Jobs > 1:
		waits = fmt.Sprintf("%d jobs waiting, the oldest for %s", w.Jobs, ago(w.Oldest, now))
	}
	return strings.Join(part, ", ") + "; " + waits
}

// table returns a queue's agents as a table.
func (v *queueView) table(q buildkite.Queue, now time.Time) *list {
	l := &list{w: v.s.Out, spare: queueSpare, most: queueMost}
	for _, c := range queueColumns {
		l.header = append(l.header, c.title)
	}
	for _, a := range q.Agents {
		var row []any
		for _, c := range queueColumns {
			cell := cmp.Or(c.cell(a, now), "-")
			if c.title == "State" {
				cell = paintAgent(v.s.Out, cell)
			}
			row = append(row, cell)
		}
		l.row(row...)
	}
	return l
}
