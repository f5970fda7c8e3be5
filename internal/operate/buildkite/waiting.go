package buildkite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Waiting are the jobs that no agent has taken yet.
type Waiting struct {
	Jobs   int       `json:"jobs"`
	Oldest time.Time `json:"oldest,omitzero"` // when it became runnable
	// Unmatched is the number of jobs that no agent in the queue can take
	// because they ask for tags that none has.
	Unmatched int      `json:"unmatched"`
	Missing   []string `json:"missing,omitempty"` // a few of those tags

	List []WaitingJob `json:"list,omitempty"` // each of them, the next one first

	IdleSince time.Time `json:"-"` // since when the oldest job waits that an idle agent could take
}

// WaitingJob is a job that no agent has taken yet.
type WaitingJob struct {
	ID       string    `json:"id"`
	Name     string    `json:"name,omitempty"`
	URL      string    `json:"url,omitempty"`
	Pipeline string    `json:"pipeline,omitempty"`
	Build    int       `json:"build,omitempty"` // number
	Priority int       `json:"priority"`
	Since    time.Time `json:"since,omitzero"` // when it became runnable
}

// dispatchTime is how long a job may wait for an idle agent: older agents ask for one every few seconds.
const dispatchTime = time.Minute

func (w *Waiting) add(b Build, j Job, agents []Agent) {
	since := j.Runnable
	if since.IsZero() {
		since = b.Created
	}
	w.Jobs++
	if w.Oldest.IsZero() || since.Before(w.Oldest) {
		w.Oldest = since
	}
	one := WaitingJob{ID: text.Line(j.ID, maxText), Name: text.Line(j.Name, maxText), URL: text.Line(j.URL, 5*maxText), Priority: int(j.Priority), Since: since}
	one.Pipeline, one.Build = BuildOf(one.URL)
	w.List = append(w.List, one)
	matched := false
	for _, a := range agents {
		if a.StandsIn() || len(a.unmetRules(j.Rules)) > 0 {
			continue
		}
		matched = true
		if a.inQueue().State == Idle && (w.IdleSince.IsZero() || since.Before(w.IdleSince)) {
			w.IdleSince = since
		}
	}
	if matched {
		return
	}
	w.Unmatched++
	for _, a := range agents {
		for _, rule := range a.unmetRules(j.Rules) {
			rule = text.Line(rule, maxText)
			if len(w.Missing) < 20*maxMissing && !slices.Contains(w.Missing, rule) {
				w.Missing = append(w.Missing, rule)
			}
		}
	}
}

// unmetRules returns the rules of a job, other than its queue, that an agent does not meet.
// Any value of the tag meets a rule with the value *, and every agent meets the rule *.
func (a Agent) unmetRules(rules []string) []string {
	var not []string
	for _, rule := range rules {
		key, value, _ := strings.Cut(rule, "=")
		if key != "queue" && rule != "*" && !slices.ContainsFunc(a.Tags, func(tag string) bool {
			k, v, _ := strings.Cut(tag, "=")
			return k == key && (v == value || value == "*")
		}) {
			not = append(not, rule)
		}
	}
	return not
}

// explainIdle sets WhyIdle where it applies. Only then it asks Buildkite for more.
func (c *Client) explainIdle(ctx context.Context, r *QueueReport) {
	stuck := func(q Queue) bool {
		return !q.Waiting.IdleSince.IsZero() && r.Time.Sub(q.Waiting.IdleSince) > dispatchTime
	}
	if !slices.ContainsFunc(r.Queues, stuck) {
		return
	}
	paused, all, err := c.pausedQueues(ctx, r.Organization)
	for i, q := range r.Queues {
		note, is := paused[q.Name]
		switch {
		case !stuck(q):
		case err != nil:
			r.Queues[i].WhyIdle = "the queue may be paused in Buildkite: " + err.Error()
		case is && note != "":
			r.Queues[i].WhyIdle = "the queue is paused in Buildkite: " + note
		case is:
			r.Queues[i].WhyIdle = "the queue is paused in Buildkite (Agents, the cluster, Queues)"
		case !all:
			r.Queues[i].WhyIdle = fmt.Sprintf(
				"the queue may be paused in Buildkite, in a cluster that was not asked: kbnode asks %d; see the page of a waiting job", maxClusters)
		default:
			r.Queues[i].WhyIdle = "the queue is not paused; the agents may be in another cluster than the pipeline: see the page of a waiting job"
		}
	}
}
