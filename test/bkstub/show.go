package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

func showLog(ctx context.Context, c *cli, args []string) error {
	c.clientFlags()
	number, _, err := c.parseNumber(args, 1)
	if err != nil {
		return err
	}
	b, err := c.api.build(ctx, number)
	if err != nil {
		return err
	}
	log, err := c.logs(ctx, b)
	c.printf("%s", log)
	return err
}

func artifact(ctx context.Context, c *cli, args []string) error {
	c.clientFlags()
	number, rest, err := c.parseNumber(args, 2)
	if err != nil {
		return err
	}
	data, err := c.api.artifact(ctx, number, rest[0])
	if err != nil {
		return err
	}
	_, err = c.stdout.Write(data)
	return err
}

func cancel(ctx context.Context, c *cli, args []string) error {
	c.clientFlags()
	number, _, err := c.parseNumber(args, 1)
	if err != nil {
		return err
	}
	return c.api.Cancel(ctx, org, c.api.pipeline, number)
}

// agentLine is what `bkstub agents --json` says of one agent.
type agentLine struct {
	Name  string   `json:"name"`
	Queue string   `json:"queue"`
	State string   `json:"state"` // connected, stopping
	Busy  bool     `json:"busy"`
	Job   string   `json:"job,omitempty"` // its id
	Tags  []string `json:"tags"`
}

func (c *cli) agentLines(ctx context.Context, queue string) ([]agentLine, error) {
	all, err := c.api.Agents(ctx, org)
	lines := []agentLine{}
	for _, a := range all {
		l := agentLine{Name: a.Name, Queue: cmp.Or(a.Tag("queue"), buildkite.DefaultQueue), State: "connected", Busy: a.Job != nil, Tags: a.Tags}
		if a.Stopping() {
			l.State = "stopping"
		}
		if a.Job != nil {
			l.Job = a.Job.ID
		}
		if queue == "" || queue == l.Queue {
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b agentLine) int { return strings.Compare(a.Name, b.Name) })
	return lines, err
}

func agents(ctx context.Context, c *cli, args []string) error {
	c.clientFlags()
	queue := c.flags.String("queue", "", "only this queue")
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, err := c.parse(args, 0); err != nil {
		return err
	}
	lines, err := c.agentLines(ctx, *queue)
	if err != nil {
		return err
	}
	if *asJSON {
		return c.printJSON(lines)
	}
	return c.table(lines)
}

func (c *cli) table(lines []agentLine) error {
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tQUEUE\tSTATE\tJOB") // Flush reports what went wrong
	for _, l := range lines {
		job := l.Job
		if job == "" {
			job = "-"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Name, l.Queue, l.State, job)
	}
	return w.Flush()
}

func waitAgents(ctx context.Context, c *cli, args []string) error {
	c.clientFlags()
	queue := c.flags.String("queue", "", "only agents of this queue")
	count := c.flags.Int("count", 1, "how many agents")
	timeout := c.flags.Duration("timeout", 2*time.Minute, "how long to wait")
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, err := c.parse(args, 0); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, patient(*timeout))
	defer stop()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	said := -1
	for {
		lines, err := c.agentLines(ctx, *queue) // the server may not be up yet
		lines = slices.DeleteFunc(lines, func(l agentLine) bool { return l.State != "connected" })
		if err == nil && len(lines) != said {
			said = len(lines)
			c.sayf("%d of %d agents connected\n", said, *count)
		}
		if err == nil && len(lines) >= *count {
			if *asJSON {
				return c.printJSON(lines)
			}
			return c.table(lines)
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d of %d agents connected after %s", max(said, 0), *count, patient(*timeout)), err)
		case <-tick.C:
		}
	}
}
