package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/text"
)

// queuePeriod is how often --watch asks. A look takes two of the fifty requests that a user's
// tokens have per minute, and more if there are many agents or builds.
const queuePeriod = 10 * time.Second

// queueView is one run of kbnode queue.
type queueView struct {
	buildkite.QueueReader
	s      Streams
	asJSON bool
}

func newQueueView(s Streams, client *buildkite.Client, org, name string, asJSON bool) *queueView {
	reader := buildkite.QueueReader{Client: client, Org: org, Name: name, Warn: func(err error) { s.warn("%v", err) }}
	return &queueView{QueueReader: reader, s: s, asJSON: asJSON}
}

func newQueue(s Streams) *cobra.Command {
	var api apiFlags
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "queue [NAME]",
		Short: "Show the agents of Buildkite's queues, their jobs, and what waits",
		Long: `Show the agents of a queue, or of all queues, what each runs, and how many jobs wait.

The API token needs the scopes read_agents and read_builds. With read_clusters too,
it can tell a queue without agents from one that does not exist. Agents and jobs that
name no queue are in the queue default.

Exit code 1 if no agent is connected.`,
		Example: `  kbnode queue --org gpu-mode
  kbnode queue b200 --watch --token-file ~/.buildkite-token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			switch {
			case len(args) > 0 && name == "":
				return usagef("the queue name is empty; leave it out for all queues")
			case len(name) > 100 || !text.Plain(name):
				return usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", name)
			case watch && cursor(s.Out) == 0 && !asJSON:
				return usagef("--watch needs a terminal as standard output; add --json for a line per change, or leave out --watch")
			}
			client, err := api.client(s, nil)
			if err != nil {
				return err
			}
			v := newQueueView(s, client, api.org, name, asJSON)
			if watch {
				return v.watch(cmd.Context())
			}
			report, err := v.Read(cmd.Context())
			if err != nil {
				return err
			}
			err = s.print(asJSON, report, func() { v.print(report) })
			if none := v.Empty(cmd.Context(), report); err == nil && none != "" {
				err = errors.New(none)
			}
			return err
		},
	}
	api.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every ten seconds, until interrupted; with --json, print a line per change")
	return cmd
}

// watch prints the queues repeatedly. It reports errors and retries.
func (v *queueView) watch(ctx context.Context) error {
	var last []byte // what was printed, as JSON
	for {
		report, err := v.Read(ctx)
		switch status := buildkite.Refused(err); {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil, status >= 400 && status < 500:
			return err
		case err != nil:
			v.s.warn("%v", err)
		default:
			now, err := json.Marshal(report.Queues)
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
			if err := v.refresh(ctx, report, bytes.Equal(now, last)); err != nil {
				return err
			}
			last = now
		}
		if limit.Sleep(ctx, queuePeriod) != nil {
			return nil
		}
	}
}

// refresh prints a report: on the screen always, as a line of JSON if it is not the same as before.
func (v *queueView) refresh(ctx context.Context, report buildkite.QueueReport, same bool) error {
	if v.asJSON && same {
		return nil
	}
	if v.asJSON {
		if err := encodeJSON(v.s.Out, "", report); err != nil {
			return err
		}
	} else {
		printf(v.s.Out, "%s%s  %s\n\n", clearScreen, report.Time.Local().Format(time.TimeOnly), v.Org)
		v.print(report)
	}
	switch none := v.Empty(ctx, report); {
	case none == "":
	case v.asJSON:
		v.s.warn("%s", none)
	default:
		printf(v.s.Out, "%s\n", none)
	}
	return nil
}

func (v *queueView) print(report buildkite.QueueReport) {
	w := v.s.Out
	warning := paintWord(w, "warning:")
	for i, q := range report.Queues {
		if i > 0 {
			printf(w, "\n")
		}
		printf(w, "%s\n", queueSummary(q, report.Time))
		if len(q.Agents) > 0 {
			v.table(q, report.Time).print()
		}
		for _, a := range q.Agents {
			if a.Note != "" {
				printf(w, "%s is paused: %s\n", a.Name, a.Note)
			}
		}
		for _, n := range q.Lacking {
			printf(w, "%s %d of the %d slots of %s have an agent; sudo kbnode status there says why: drained, parked, failed, or between two jobs\n",
				warning, n.Agents, n.Slots, n.Node)
		}
		if n := q.Waiting.Unmatched; n > 0 && len(q.Agents) > 0 {
			printf(w, "%s %d waiting %s for tags that no agent here has: %s\n", warning,
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
	l := newList(v.s.Out, "Agent", "State", "For", "Job", "GPU", "Model", "Node", "Version", "kbnode")
	l.spare = []string{"Node", "kbnode", "Version", "Model"}
	l.most = map[string]int{"Agent": 28, "Job": 24, "Model": 20, "Node": 20, "Version": 20, "kbnode": 20}
	for _, a := range q.Agents {
		since, job, gpu := "-", "", "-"
		if a.Job != nil {
			since, job = ago(a.Job.Started, now), a.Job.ID
			if a.Job.Build > 0 {
				job = fmt.Sprintf("%s#%d", a.Job.Pipeline, a.Job.Build)
			}
		}
		if a.GPUIndex != nil {
			gpu = strconv.Itoa(*a.GPUIndex)
		}
		row := []any{a.Name, paintWord(v.s.Out, a.State), since}
		for _, cell := range []string{job, gpu, a.GPUModel, a.Node, a.AgentVersion, a.KbnodeVersion} {
			row = append(row, cmp.Or(cell, "-"))
		}
		l.row(row...)
	}
	return l
}
