package submit

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// CheckQueue returns an error if no agent is connected in queue: a build would wait there
// forever. If the token may not list agents, it returns nil.
func CheckQueue(ctx context.Context, c *buildkite.Client, org, queue string) error {
	queues := map[string]bool{}
	err := c.EachAgent(ctx, org, func(a buildkite.Agent) bool {
		for _, q := range a.Queues() {
			queues[q] = true
		}
		return !queues[queue] // of thousands, the first match is enough
	})
	switch status := buildkite.Refused(err); {
	case status == http.StatusForbidden:
		return nil
	case err != nil:
		return err
	}
	if queues[queue] {
		return nil
	}
	if len(queues) == 0 {
		return fmt.Errorf("no agent is connected in queue %s or any other queue of %s; --force creates the build anyway", queue, org)
	}
	return fmt.Errorf("no agent is connected in queue %s; there are agents in %s; --force creates the build anyway", queue, buildkite.Named(queue, slices.Collect(maps.Keys(queues))))
}
