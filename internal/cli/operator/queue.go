package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/text"
)

// queuePeriod is how often --watch asks. A look takes two of the fifty requests that a user's
// tokens have per minute, and more if there are many agents or builds.
const queuePeriod = 10 * time.Second

// QueueView is one run of kbnode queue.
type QueueView struct {
	S         term.Streams
	Client    *buildkite.Client
	Org, Name string // Name is of the queue; "" means all
	JSON      bool

	withAgents []string // the queues, as last read
}

// NewQueue returns kbnode queue.
func NewQueue(s term.Streams) *cobra.Command {
	var api APIFlags
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "queue [NAME]",
		Short: "Show the agents of Buildkite's queues, their jobs, and what waits",
		Long: `Show the agents of a queue, or of all queues, what each runs, and how many jobs wait.

The API token needs the scopes read_agents and read_builds. Agents and jobs that name no
queue are in the queue default.

Exit code 1 if no agent is connected.`,
		Example: `  kbnode queue --org gpu-mode
  kbnode queue b200 --watch --token-file ~/.buildkite-token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			switch {
			case len(args) > 0 && name == "":
				return term.Usagef("the queue name is empty; leave it out for all queues")
			case len(name) > 100 || !text.Plain(name):
				return term.Usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", name)
			case watch && term.Cursor(s.Out) == 0 && !asJSON:
				return term.Usagef("--watch needs a terminal as standard output; add --json for a line per change, or leave out --watch")
			}
			client, err := api.Client(s, nil)
			if err != nil {
				return err
			}
			v := &QueueView{S: s, Client: client, Org: api.Org, Name: name, JSON: asJSON}
			if watch {
				return v.Watch(cmd.Context())
			}
			report, err := v.read(cmd.Context())
			if err != nil {
				return err
			}
			err = s.Print(asJSON, report, func() { v.Print(report) })
			if none := v.empty(); err == nil && none != "" {
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

func (v *QueueView) read(ctx context.Context) (buildkite.QueueReport, error) {
	agents, err := v.Client.Agents(ctx, v.Org)
	if err != nil {
		return buildkite.QueueReport{}, err
	}
	builds, err := v.Client.Unfinished(ctx, v.Org)
	if err != nil {
		return buildkite.QueueReport{}, err
	}
	r := buildkite.QueueReport{Time: time.Now().UTC().Truncate(time.Second), Organization: v.Org, Queues: []buildkite.Queue{}}
	v.withAgents = nil
	for _, q := range buildkite.Queues(agents, builds) {
		if len(q.Agents) > 0 {
			v.withAgents = append(v.withAgents, q.Name)
		}
		if v.Name == "" || q.Name == v.Name {
			r.Queues = append(r.Queues, q)
		}
	}
	if v.Name != "" && len(r.Queues) == 0 {
		r.Queues = append(r.Queues, buildkite.Queue{Name: v.Name, Agents: []buildkite.QueueAgent{}})
	}
	return r, nil
}

// empty says why what was read has no agent. It returns "" if it has one.
func (v *QueueView) empty() string {
	if len(v.withAgents) > 0 && (v.Name == "" || slices.Contains(v.withAgents, v.Name)) {
		return ""
	}
	there := "no agent is connected in any queue of " + v.Org
	if len(v.withAgents) > 0 {
		there = "queues with agents: " + buildkite.Named(v.Name, v.withAgents)
	}
	if v.Name == "" {
		return there
	}
	return fmt.Sprintf("no agent is connected in queue %q; %s", v.Name, there)
}

// Watch prints the queues repeatedly. It reports errors and retries.
func (v *QueueView) Watch(ctx context.Context) error {
	var last []byte // what was printed, as JSON
	for {
		report, err := v.read(ctx)
		switch status := buildkite.Refused(err); {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil, status >= 400 && status < 500:
			return err
		case err != nil:
			v.S.Warn("%v", err)
		default:
			now, err := json.Marshal(report.Queues)
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
			if err := v.refresh(report, bytes.Equal(now, last)); err != nil {
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
func (v *QueueView) refresh(report buildkite.QueueReport, same bool) error {
	if v.JSON && same {
		return nil
	}
	if v.JSON {
		if err := term.EncodeJSON(v.S.Out, "", report); err != nil {
			return err
		}
	} else {
		term.Printf(v.S.Out, "%s%s  %s\n\n", term.ClearScreen, report.Time.Local().Format(time.TimeOnly), v.Org)
		v.Print(report)
	}
	switch none := v.empty(); {
	case none == "":
	case v.JSON:
		v.S.Warn("%s", none)
	default:
		term.Printf(v.S.Out, "%s\n", none)
	}
	return nil
}

// Print writes a report for people.
func (v *QueueView) Print(report buildkite.QueueReport) {
	w := v.S.Out
	warning := term.PaintWord(w, "warning:")
	for i, q := range report.Queues {
		if i > 0 {
			term.Printf(w, "\n")
		}
		term.Printf(w, "%s\n", queueSummary(q, report.Time))
		if len(q.Agents) > 0 {
			v.Table(q, report.Time).Print()
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

// Table returns a queue's agents as a table.
func (v *QueueView) Table(q buildkite.Queue, now time.Time) *term.List {
	l := term.NewList(v.S.Out, "Agent", "State", "For", "Job", "GPU", "Model", "Node", "Version", "kbnode")
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
		row := []any{a.Name, term.PaintWord(v.S.Out, a.State), since}
		for _, cell := range []string{job, gpu, a.GPUModel, a.Node, a.AgentVersion, a.KbnodeVersion} {
			row = append(row, cmp.Or(cell, "-"))
		}
		l.Row(row...)
	}
	return l
}
