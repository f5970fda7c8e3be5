package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	buildkite.QueueLook
	s      Streams
	asJSON bool
}

func newQueueView(s Streams, client *buildkite.Client, org, name string, asJSON bool) *queueView {
	look := buildkite.QueueLook{Client: client, Org: org, Name: name, Warn: func(err error) { s.warn("%v", err) }}
	return &queueView{QueueLook: look, s: s, asJSON: asJSON}
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
  kbnode queue b200 --watch
  kbnode queue b200 --json --token-file ~/.buildkite-token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := newQueueView(s, nil, "", strings.Join(args, ""), asJSON)
			switch {
			case len(args) > 0 && v.Name == "":
				return usagef("the queue name is empty; leave it out for all queues")
			case len(v.Name) > 100 || !text.Plain(v.Name):
				return usagef("%.40q is not the name of a queue; write it as in Buildkite, such as b200", v.Name)
			}
			if watch && cursor(s.Out) == 0 && !asJSON {
				return usagef("--watch needs a terminal as standard output; add --json for a line per change, or leave out --watch")
			}
			var err error
			if v.Client, err = api.client(s, nil); err != nil {
				return err
			}
			v.Org = api.org
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
	report, err := v.Ask(ctx)
	if err != nil {
		return err
	}
	if v.asJSON {
		err = printJSON(v.s.Out, report)
	} else {
		v.print(report)
	}
	if none := v.Empty(ctx, report); err == nil && none != "" {
		err = errors.New(none)
	}
	return err
}

// watch prints the queues repeatedly. It reports errors and retries.
func (v *queueView) watch(ctx context.Context) error {
	var last []byte
	for {
		report, err := v.Ask(ctx)
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
				if none := v.Empty(ctx, report); none != "" {
					v.s.warn("%s", none)
				}
			}
			last = now
		default:
			last = []byte{}
			printf(v.s.Out, "\x1b[H\x1b[2J%s  %s\n\n", report.Time.Local().Format(time.TimeOnly), v.Org)
			v.print(report)
			if none := v.Empty(ctx, report); none != "" {
				printf(v.s.Out, "%s\n", none)
			}
		}
		if limit.Sleep(ctx, queuePeriod) != nil {
			return nil
		}
	}
}

// line prints a report as one line of JSON.
func (v *queueView) line(report buildkite.QueueReport) error {
	enc := json.NewEncoder(data(v.s.Out))
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
