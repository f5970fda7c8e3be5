package submit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/buildkite"
)

// maxNamed bounds the names in a sentence.
const maxNamed = 8

// Explain says more of why a build was not created, where the organization or the
// pipeline may have another name.
func Explain(ctx context.Context, c *buildkite.Client, err error, org, pipeline string) error {
	if buildkite.Refused(err) != http.StatusNotFound {
		return err
	}
	pipelines, listErr := c.Pipelines(ctx, org)
	switch {
	case listErr == nil && slices.Contains(pipelines, pipeline):
		return err
	case listErr == nil && len(pipelines) == 0:
		return fmt.Errorf("organization %s has no pipeline that the API token reaches; make one in Buildkite, or tick it in the token's settings", org)
	case listErr == nil:
		return fmt.Errorf("organization %s has no pipeline %s; it has %s", org, pipeline, named(pipeline, pipelines))
	case buildkite.Refused(listErr) != http.StatusNotFound:
		return err
	}
	orgs, listErr := c.Organizations(ctx)
	if listErr != nil || len(orgs) == 0 || slices.Contains(orgs, org) {
		return err
	}
	return fmt.Errorf("the API token does not reach an organization %s; it reaches %s", org, named(org, orgs))
}

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
		if q := a.Tag("queue"); q != "" {
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
	return fmt.Errorf("no agent is connected in queue %s; there are some in %s; --force creates the build all the same", queue, named(queue, names))
}

func named(word string, names []string) string {
	names = near(word, names)
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	for i, n := range names {
		names[i] = clean(n)
	}
	return strings.Join(names, ", ") + more
}
