package buildkite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// Agent is a connected agent.
type Agent struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Hostname   string    `json:"hostname"`
	Version    string    `json:"version"`          // of buildkite-agent
	Tags       []string  `json:"meta_data"`        // key=value
	Connection string    `json:"connection_state"` // connected, stopping
	Paused     bool      `json:"paused"`           // paused in Buildkite, which sends it no jobs
	PausedNote string    `json:"paused_note"`
	PausedAt   time.Time `json:"paused_at"`
	Job        *Job      `json:"job"` // what it runs; nil if idle

	LastJob time.Time `json:"last_job_finished_at"` // zero if it had none
}

// StandsIn reports whether the agent only says why a slot takes no jobs.
func (a Agent) StandsIn() bool { return Tag(a.Tags, plan.OutTag) != "" }

// outSince returns since when a slot whose agent is in this state takes no jobs, or zero if that is not known: a stand-in is
// paused later than its slot was drained, and again each day.
func (a Agent) outSince(state string) time.Time {
	switch {
	case a.StandsIn():
		since, _ := time.Parse(time.RFC3339, Tag(a.Tags, plan.OutSinceTag))
		return since.UTC()
	case state == Paused:
		return a.PausedAt
	}
	return time.Time{}
}

// Stopping reports whether the agent exits after its job.
func (a Agent) Stopping() bool { return a.Connection == Stopping }

// Tag returns the value of one of an agent's tags; "" if it does not have it.
func Tag(tags []string, key string) string {
	for _, tag := range tags {
		if value, ok := strings.CutPrefix(tag, key+"="); ok {
			return value
		}
	}
	return ""
}

// Queues returns the queues that it takes jobs from; an agent that names none is in
// [DefaultQueue].
func (a Agent) Queues() []string { return queuesOf(a.Tags) }

func (a Agent) id() string { return a.ID }

// Agents lists the connected agents of an organization. The token needs the scope
// read_agents.
func (c *Client) Agents(ctx context.Context, organization string) ([]Agent, error) {
	return list[Agent](ctx, c, "agents", "read_agents", organizationPath(organization, "agents"), nil, Agent.id)
}

// EachAgent calls fn with the connected agents of an organization until it returns
// false. A request covers a hundred agents.
func (c *Client) EachAgent(ctx context.Context, organization string, fn func(Agent) bool) error {
	return each(ctx, c, "agents", "read_agents", organizationPath(organization, "agents"), nil, Agent.id, fn)
}

func organizationPath(organization, what string) string {
	return fmt.Sprintf("v2/organizations/%s/%s", organization, what)
}
