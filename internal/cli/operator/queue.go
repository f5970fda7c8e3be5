package operator

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// NewQueue returns kbnode queue.
func NewQueue(s term.Streams) *cobra.Command {
	var api APIFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "queue [NAME]",
		Short: "Show the agents of Buildkite's queues, their jobs, and what waits",
		Long: `Show the agents of a queue, or of all queues, what each runs, and how many jobs wait.

The API token needs the scopes read_agents and read_builds. Agents and jobs that name no
queue are in the queue default.

Exit code 1 if no agent is connected.`,
		Example: `  kbnode queue --org gpu-mode
  kbnode queue b200 --token-file ~/.buildkite-token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			switch {
			case len(args) > 0 && name == "":
				return term.Usagef("the queue name is empty; leave it out for all queues")
			case len(name) > 100 || !text.Plain(name):
				return term.Usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", name)
			}
			client, err := api.Client(s, nil)
			if err != nil {
				return err
			}
			report, none, err := client.ReadQueues(cmd.Context(), api.Org, name)
			if err != nil {
				return err
			}
			err = s.Print(asJSON, report, func() { PrintQueues(s.Out, report) })
			if err == nil && none != "" {
				err = errors.New(none)
			}
			return err
		},
	}
	api.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newQueueCreate(s))
	return cmd
}

// PrintQueues writes a report for people.
func PrintQueues(w io.Writer, report buildkite.QueueReport) {
	warning := term.PaintWord(w, "warning:")
	for i, q := range report.Queues {
		if i > 0 {
			term.Printf(w, "\n")
		}
		term.Printf(w, "%s\n", queueSummary(q, report.Time))
		if len(q.Agents) > 0 {
			QueueTable(w, q, report.Time).Print()
		}
		for _, a := range q.Agents {
			if a.Note != "" {
				term.Printf(w, "%s is paused: %s\n", a.Name, a.Note)
			}
		}
		for _, n := range q.Lacking {
			term.Printf(w, "%s %d of the %d slots of %s have an agent; sudo kbnode status there says why: drained, parked, failed, or between two jobs\n",
				warning, n.Agents, n.Slots, n.Node)
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			term.Printf(w, "%s %d waiting %s for tags that no agent here has: %s\n", warning,
				n, text.Plural(n, "job asks", "jobs ask"), strings.Join(q.Waiting.Missing, ", "))
		}
	}
}

func queueSummary(q buildkite.Queue, now time.Time) string {
	busy, n := q.Count(buildkite.Busy, buildkite.Draining), len(q.Agents)
	part := []string{q.Name + ": " + text.Count(n, "agent"), fmt.Sprintf("%d idle", q.Count(buildkite.Idle)), fmt.Sprintf("%d busy", busy)}
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
		waits = "1 job waiting, for " + term.Ago(w.Oldest, now)
	case w.Jobs > 1:
		waits = fmt.Sprintf("%d jobs waiting, the oldest for %s", w.Jobs, term.Ago(w.Oldest, now))
	}
	return strings.Join(part, ", ") + "; " + waits
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
