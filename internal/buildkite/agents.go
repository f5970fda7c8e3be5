package buildkite

import (
	"context"
	"fmt"
	"net/url"
	"strings"
)

// Agent is a connected agent.
type Agent struct {
	Name       string   `json:"name"`
	Hostname   string   `json:"hostname"`
	Version    string   `json:"version"`          // of buildkite-agent
	Tags       []string `json:"meta_data"`        // key=value
	Connection string   `json:"connection_state"` // connected, stopping
	Paused     bool     `json:"paused"`           // paused in Buildkite, which sends it no jobs
	PausedNote string   `json:"paused_note"`
	Job        *Job     `json:"job"` // what it runs; nil if idle
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

// Agents lists the connected agents of an organization. The token needs the scope
// read_agents.
func (c *Client) Agents(ctx context.Context, organization string) ([]Agent, error) {
	var all []Agent
	err := c.EachAgent(ctx, organization, func(a Agent) bool {
		all = append(all, a)
		return true
	})
	return all, err
}

// EachAgent calls fn with the connected agents of an organization until it returns
// false. A request covers a hundred agents.
func (c *Client) EachAgent(ctx context.Context, organization string, fn func(Agent) bool) error {
	return each(ctx, c, "agents", "read_agents", organizationPath(organization, "agents"), nil, fn)
}

func organizationPath(organization, what string) string {
	return fmt.Sprintf("v2/organizations/%s/%s", organization, what)
}

type slugged struct {
	Slug string `json:"slug"`
}

func slugs(list []slugged) (names []string) {
	for _, l := range list {
		names = append(names, l.Slug)
	}
	return names
}

// Pipelines lists the names of an organization's pipelines. The token needs the scope
// read_pipelines.
func (c *Client) Pipelines(ctx context.Context, organization string) ([]string, error) {
	all, err := list[slugged](ctx, c, "pipelines", "read_pipelines", organizationPath(organization, "pipelines"), nil)
	return slugs(all), err
}

// Organizations lists the names of the organizations that the token reaches. The
// token needs the scope read_organizations.
func (c *Client) Organizations(ctx context.Context) ([]string, error) {
	all, err := list[slugged](ctx, c, "organizations", "read_organizations", "v2/organizations", nil)
	return slugs(all), err
}

// maxClusters bounds the clusters whose queues are listed, with one request each.
const maxClusters = 20

// ClusterQueues lists the names of the queues of an organization's clusters, with
// or without agents. The token needs the scope read_clusters.
func (c *Client) ClusterQueues(ctx context.Context, organization string) ([]string, error) {
	type cluster struct {
		ID string `json:"id"`
	}
	type queue struct {
		Key string `json:"key"`
	}
	clusters, err := list[cluster](ctx, c, "clusters", "read_clusters", organizationPath(organization, "clusters"), nil)
	if err != nil {
		return nil, err
	}
	if len(clusters) > maxClusters {
		return nil, fmt.Errorf("list queues: there are %d clusters, and kbnode asks at most %d", len(clusters), maxClusters)
	}
	all := []string{}
	for _, cl := range clusters {
		queues, err := list[queue](ctx, c, "queues", "read_clusters", organizationPath(organization, "clusters/"+url.PathEscape(cl.ID)+"/queues"), nil)
		if err != nil {
			return nil, err
		}
		for _, q := range queues {
			all = append(all, queueLine(q.Key))
		}
	}
	return all, nil
}
