package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// queuePeriod is how often --watch asks. A look takes two of the fifty requests that a
	// user's tokens have per minute, and more if there are many agents or builds.
	queuePeriod = 10 * time.Second
)

// queueReport is the JSON of kbnode queue.
type queueReport struct {
	Time         time.Time         `json:"time"` // of the answer
	Organization string            `json:"organization"`
	Queues       []buildkite.Queue `json:"queues"`
}

// queueView is one run of kbnode queue.
type queueView struct {
	s      Streams
	client *buildkite.Client
	org    string
	name   string // of the queue; "" means all
	asJSON bool

	exists map[string]bool // the queues of the clusters; nil if not asked or not known
	asked  bool
}

func newQueue(s Streams) *cobra.Command {
	var api apiFlags
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "queue [NAME]",
		Short: "Show the agents of Buildkite's queues, their jobs, and waiting jobs",
		Long: `Show the agents of a queue, or of all queues: what each runs and since when, its
GPU, node and versions. It also shows how many jobs wait, and for how long.

It asks Buildkite, from any machine, with an API token that has the scopes
read_agents and read_builds. With read_clusters too, it can tell a queue without
agents from one that does not exist.

An agent is idle, busy, paused, stopping or draining, which means busy with its last
job. Agents and jobs that name no queue are in the queue default.

Exit code 1 if no agent is connected.`,
		Example: `  kbnode queue --org gpu-mode
  kbnode queue b200 --watch
  kbnode queue b200 --json --token-file ~/.buildkite-token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := &queueView{s: s, asJSON: asJSON, name: strings.Join(args, "")}
			switch {
			case len(args) > 0 && v.name == "":
				return usagef("the queue name is empty; leave it out for all queues")
			case len(v.name) > 100 || !text.Plain(v.name):
				return usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", v.name)
			}
			if watch && cursor(s.Out) == 0 && !asJSON {
				return usagef("--watch needs a terminal as standard output; add --json for a line per change, or leave out --watch")
			}
			var err error
			if v.client, err = api.client(s, nil); err != nil {
				return err
			}
			v.org = api.org
			if watch {
				return v.watch(cmd.Context())
			}
			return v.once(cmd.Context())
		},
	}
	api.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every ten seconds, until interrupted; with --json, print a line per change")
	return cmd
}

func (v *queueView) once(ctx context.Context) error {
	report, others, err := v.ask(ctx)
	if err != nil {
		return err
	}
	if v.asJSON {
		err = printJSON(v.s.Out, report)
	} else {
		v.print(report)
	}
	if none := v.empty(ctx, others); err == nil && none != "" {
		err = errors.New(none)
	}
	return err
}

// watch prints the queues repeatedly. It reports errors and retries.
func (v *queueView) watch(ctx context.Context) error {
	var last []byte
	for {
		report, others, err := v.ask(ctx)
		switch status := buildkite.Refused(err); {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil, status >= 400 && status < 500:
			return err
		case err != nil:
			v.s.warn("%v", err)
		case v.asJSON:
			now, err := json.Marshal(report.Queues)
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
			if !bytes.Equal(now, last) {
				if err := v.line(report); err != nil {
					return err
				}
				if none := v.empty(ctx, others); none != "" {
					v.s.warn("%s", none)
				}
			}
			last = now
		default:
			last = []byte{}
			printf(v.s.Out, "\x1b[H\x1b[2J%s  %s\n\n", report.Time.Local().Format(time.TimeOnly), v.org)
			v.print(report)
			if none := v.empty(ctx, others); none != "" {
				printf(v.s.Out, "%s\n", none)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(queuePeriod):
		}
	}
}

// line prints a report as one line of JSON.
func (v *queueView) line(report queueReport) error {
	enc := json.NewEncoder(data(v.s.Out))
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// ask reads the queues to show, and the names of all queues with agents.
func (v *queueView) ask(ctx context.Context) (report queueReport, others []string, err error) {
	agents, err := v.client.Agents(ctx, v.org)
	if err != nil {
		return report, nil, v.client.Explain(ctx, err, v.org, "")
	}
	builds, err := v.client.Unfinished(ctx, v.org)
	if err != nil {
		return report, nil, err
	}
	report = queueReport{Time: time.Now().UTC().Truncate(time.Second), Organization: v.org, Queues: []buildkite.Queue{}}
	for _, q := range buildkite.Queues(agents, builds) {
		if len(q.Agents) > 0 {
			others = append(others, q.Name)
		}
		if v.name == "" || q.Name == v.name {
			report.Queues = append(report.Queues, q)
		}
	}
	if v.name != "" && len(report.Queues) == 0 {
		report.Queues = append(report.Queues, buildkite.Queue{Name: v.name, Agents: []buildkite.QueueAgent{}})
	}
	return report, others, nil
}

// empty says why there is no agent to show. It returns "" if there is one.
func (v *queueView) empty(ctx context.Context, others []string) string {
	if len(others) > 0 && (v.name == "" || slices.Contains(others, v.name)) {
		return ""
	}
	there := "no agent is connected in any queue of " + v.org
	if len(others) > 0 {
		there = "queues with agents: " + buildkite.Named(v.name, others)
	}
	if v.name == "" {
		return there
	}
	if !v.asked {
		v.asked = true
		names, err := v.client.ClusterQueues(ctx, v.org)
		if err == nil {
			v.exists = map[string]bool{}
			for _, n := range names {
				v.exists[n] = true
			}
		} else if buildkite.Refused(err) != http.StatusForbidden {
			v.s.warn("%v", err)
		}
	}
	switch {
	case v.exists[v.name]:
		return fmt.Sprintf("queue %s exists, but no agent is connected in it; %s", v.name, there)
	case v.exists != nil:
		return fmt.Sprintf("there is no queue %q in %s; %s", v.name, v.org, there)
	}
	return fmt.Sprintf("no agent is connected in queue %q; %s", v.name, there)
}
