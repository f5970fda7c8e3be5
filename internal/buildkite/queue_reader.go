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

	others []string // all queues with agents
}

// QueueReader reads the queues of an organization repeatedly.
type QueueReader struct {
	Client *Client
	Org    string
	Name   string      // of the queue; "" means all
	Warn   func(error) // hears why the queues of the clusters are not known

	exists []string // the queues of the clusters; nil if not asked or not known
	read   bool
}

// Read reads the queues.
func (l *QueueReader) Read(ctx context.Context) (QueueReport, error) {
	agents, err := l.Client.Agents(ctx, l.Org)
	if err != nil {
		return QueueReport{}, l.Client.Explain(ctx, err, l.Org, "")
	}
	builds, err := l.Client.Unfinished(ctx, l.Org)
	if err != nil {
		return QueueReport{}, err
	}
	r := QueueReport{Time: time.Now().UTC().Truncate(time.Second), Organization: l.Org, Queues: []Queue{}}
	for _, q := range Queues(agents, builds) {
		if len(q.Agents) > 0 {
			r.others = append(r.others, q.Name)
		}
		if l.Name == "" || q.Name == l.Name {
			r.Queues = append(r.Queues, q)
		}
	}
	if l.Name != "" && len(r.Queues) == 0 {
		r.Queues = append(r.Queues, Queue{Name: l.Name, Agents: []QueueAgent{}})
	}
	return r, nil
}

// Empty says why a report has no agent. It returns "" if it has one.
func (l *QueueReader) Empty(ctx context.Context, r QueueReport) string {
	if len(r.others) > 0 && (l.Name == "" || slices.Contains(r.others, l.Name)) {
		return ""
	}
	there := "no agent is connected in any queue of " + l.Org
	if len(r.others) > 0 {
		there = "queues with agents: " + Named(l.Name, r.others)
	}
	if l.Name == "" {
		return there
	}
	if !l.read {
		l.read = true
		names, err := l.Client.ClusterQueues(ctx, l.Org)
		if err == nil {
			l.exists = append([]string{}, names...)
		} else if Refused(err) != http.StatusForbidden {
			l.Warn(err)
		}
	}
	switch {
	case slices.Contains(l.exists, l.Name):
		return fmt.Sprintf("queue %s exists, but no agent is connected in it; %s", l.Name, there)
	case l.exists != nil:
		return fmt.Sprintf("there is no queue %q in %s; %s", l.Name, l.Org, there)
	}
	return fmt.Sprintf("no agent is connected in queue %q; %s", l.Name, there)
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
