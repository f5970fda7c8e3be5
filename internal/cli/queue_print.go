package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// What the table shows of names at most, in letters.
const (
	maxAgentName = 28
	maxJobName   = 24
	maxCell      = 20
)

// queueColumns are the table's, with what they hold of an agent.
var queueColumns = []struct {
	title string
	cell  func(a buildkite.QueueAgent, now time.Time) string
}{
	{"Agent", func(a buildkite.QueueAgent, _ time.Time) string { return middle(a.Name, maxAgentName) }},
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
			return middle(fmt.Sprintf("%s#%d", j.Pipeline, j.Build), maxJobName)
		default:
			return middle(j.ID, maxJobName)
		}
	}},
	{"GPU", func(a buildkite.QueueAgent, _ time.Time) string {
		if a.GPUIndex == nil {
			return ""
		}
		return strconv.Itoa(*a.GPUIndex)
	}},
	{"Model", func(a buildkite.QueueAgent, _ time.Time) string { return middle(a.GPUModel, maxCell) }},
	{"Node", func(a buildkite.QueueAgent, _ time.Time) string { return middle(a.Node, maxCell) }},
	{"Version", func(a buildkite.QueueAgent, _ time.Time) string { return middle(a.AgentVersion, maxCell) }},
	{"kbnode", func(a buildkite.QueueAgent, _ time.Time) string { return middle(a.KbnodeVersion, maxCell) }},
}

// queueSpare are the columns that a narrow terminal goes without, the first first.
var queueSpare = []string{"Node", "kbnode", "Version", "Model"}

// middle shortens a text in its middle: names of agents differ at their ends.
func middle(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

func (v *queueView) print(report queueReport) {
	width, _ := terminal(v.s.Out)
	for i, q := range report.Queues {
		if i > 0 {
			printf(v.s.Out, "\n")
		}
		printf(v.s.Out, "%s\n", queueSummary(q, report.Time))
		if len(q.Agents) > 0 {
			printf(v.s.Out, "%s\n", v.table(q, report.Time, width))
		}
		for _, a := range q.Agents {
			if a.Note != "" {
				printf(v.s.Out, "%s is paused: %s\n", middle(a.Name, maxAgentName), a.Note)
			}
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			printf(v.s.Out, "%s %d waiting %s for tags that no agent here has: %s\n", paint(v.s.Out, text.FgYellow, "warning:"),
				n, plural(n, "job asks", "jobs ask"), strings.Join(q.Waiting.Missing, ", "))
		}
	}
}

// queueSummary is a queue in one line.
func queueSummary(q buildkite.Queue, now time.Time) string {
	busy, n := q.Count(buildkite.Busy, buildkite.Draining), len(q.Agents)
	part := []string{fmt.Sprintf("%s: %d %s", q.Name, n, plural(n, "agent", "agents")), fmt.Sprintf("%d idle", q.Count(buildkite.Idle)), fmt.Sprintf("%d busy", busy)}
	if d := q.Count(buildkite.Draining); d > 0 {
		part[2] += fmt.Sprintf(" (%d draining)", d)
	}
	for _, state := range []string{buildkite.Paused, buildkite.Stopping} {
		if c := q.Count(state); c > 0 {
			part = append(part, fmt.Sprintf("%d %s", c, state))
		}
	}
	waits := "no job waits"
	switch w := q.Waiting; {
	case w.Jobs == 1:
		waits = "1 job waits, for " + ago(w.Oldest, now)
	case w.Jobs > 1:
		waits = fmt.Sprintf("%d jobs wait, the oldest for %s", w.Jobs, ago(w.Oldest, now))
	}
	return strings.Join(part, ", ") + "; " + waits
}

// table is a queue's agents, without columns that do not fit; width 0 fits all.
func (v *queueView) table(q buildkite.Queue, now time.Time, width int) string {
	for without := 0; ; without++ {
		var header []any
		rows := make([][]any, len(q.Agents))
		for _, c := range queueColumns {
			if slices.Contains(queueSpare[:without], c.title) {
				continue
			}
			header = append(header, c.title)
			for i, a := range q.Agents {
				cell := c.cell(a, now)
				switch {
				case cell == "":
					cell = "-"
				case c.title == "State":
					cell = paintAgent(v.s.Out, cell)
				}
				rows[i] = append(rows[i], cell)
			}
		}
		var out strings.Builder
		t := newTable(&out, header...)
		for _, r := range rows {
			t.AppendRow(r)
		}
		if drawn := t.Render(); width == 0 || without == len(queueSpare) || text.LongestLineLen(drawn) <= width {
			return drawn
		}
	}
}
