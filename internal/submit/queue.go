package submit

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// CheckQueue refuses a queue in which no agent is connected: a build would wait there
// for good. A token that may not list agents is asked no more.
func CheckQueue(ctx context.Context, c *buildkite.Client, org, queue string) error {
	agents, err := c.Agents(ctx, org)
	switch status := buildkite.Refused(err); {
	case status == http.StatusForbidden:
		return nil
	case err != nil:
		return err
	}
	queues := map[string]int{}
	for _, a := range agents {
		for _, q := range a.Queues() {
			queues[q]++
		}
	}
	if queues[queue] > 0 {
		return nil
	}
	var names []string
	for q := range queues {
		names = append(names, q)
	}
	if len(names) == 0 {
		return fmt.Errorf("no agent is connected in queue %s, nor in any other of %s; --force creates the build all the same", queue, org)
	}
	return fmt.Errorf("no agent is connected in queue %s; there are some in %s; --force creates the build all the same", queue, buildkite.Named(queue, names))
}
