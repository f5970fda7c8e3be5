package buildkite

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// QueueReport is the JSON of kbnode queue.
type QueueReport struct {
	Time         time.Time `json:"time"` // of the answer
	Organization string    `json:"organization"`
	Queues       []Queue   `json:"queues"`
}

// maxNamed bounds the names in a message.
const maxNamed = 8

// Named formats names for a message, those most like word first.
func Named(word string, names []string) string {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(text.Edits(word, a), text.Edits(word, b)), cmp.Compare(a, b))
	})
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	for i, n := range names {
		names[i] = text.Line(n, 100)
	}
	return strings.Join(names, ", ") + more
}

// Explain returns an error that lists the names that exist if err is a not-found
// error because the organization, or the pipeline if it is not "", does not exist.
// Otherwise it returns err.
func (c *Client) Explain(ctx context.Context, err error, org, pipeline string) error {
	if Refused(err) != http.StatusNotFound {
		return err
	}
	if pipeline != "" {
		pipelines, listErr := c.Pipelines(ctx, org)
		switch {
		case listErr == nil && len(pipelines) == 0:
			return fmt.Errorf("organization %s has no pipeline that the API token can access; create one in Buildkite", org)
		case listErr == nil && !slices.Contains(pipelines, pipeline):
			return fmt.Errorf("organization %s has no pipeline %s; it has %s", org, pipeline, Named(pipeline, pipelines))
		case Refused(listErr) != http.StatusNotFound:
			return err
		}
	}
	orgs, listErr := c.Organizations(ctx)
	if listErr != nil || len(orgs) == 0 || slices.Contains(orgs, org) {
		return err
	}
	return fmt.Errorf("the API token has no access to organization %s; it has access to %s", org, Named(org, orgs))
}
