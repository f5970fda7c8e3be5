package buildkite

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/buildkite/go-buildkite/v4"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Agent is a connected agent.
type Agent struct {
	Name, Hostname string
	Version        string   // of buildkite-agent
	Tags           []string // key=value
	Stopping       bool     // it exits after its job
	Paused         bool     // paused in Buildkite, which sends it no jobs
	PausedNote     string
	Job            *Job // what it runs; nil if idle
}

// Tag returns the value of a tag; "" if the agent does not have it.
func (a Agent) Tag(key string) string {
	for _, tag := range a.Tags {
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

// EachAgent calls each with the connected agents of an organization until it returns
// false. A request covers a hundred agents.
func (c *Client) EachAgent(ctx context.Context, organization string, each func(Agent) bool) error {
	err := pages(func(page int) (int, error) {
		agents, resp, err := c.api.Agents.List(ctx, organization, &buildkite.AgentListOptions{ListOptions: buildkite.ListOptions{Page: page, PerPage: 100}})
		if err != nil {
			return 0, plain(err, "read_agents")
		}
		for _, a := range agents {
			if !each(agentOf(a)) {
				return 0, nil
			}
		}
		return resp.NextPage, nil
	})
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	return nil
}

func agentOf(a buildkite.Agent) Agent {
	agent := Agent{
		Name: a.Name, Hostname: a.Hostname, Version: a.Version, Tags: a.Metadata,
		Stopping: a.ConnectedState == "stopping", Paused: a.Paused != nil && *a.Paused,
	}
	if a.PausedNote != nil {
		agent.PausedNote = *a.PausedNote
	}
	if a.Job != nil {
		agent.Job = &Job{ID: a.Job.ID, Name: a.Job.Name, State: a.Job.State, URL: a.Job.WebURL}
		if a.Job.StartedAt != nil {
			agent.Job.Started = a.Job.StartedAt.Time
		}
	}
	return agent
}

// Pipelines lists the names of an organization's pipelines. The token needs the scope
// read_pipelines.
func (c *Client) Pipelines(ctx context.Context, organization string) ([]string, error) {
	var all []string
	err := pages(func(page int) (int, error) {
		pipelines, resp, err := c.api.Pipelines.List(ctx, organization, &buildkite.PipelineListOptions{ListOptions: buildkite.ListOptions{Page: page, PerPage: 100}})
		if err != nil {
			return 0, plain(err, "read_pipelines")
		}
		for _, p := range pipelines {
			all = append(all, p.Slug)
		}
		return resp.NextPage, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pipelines: %w", err)
	}
	return all, nil
}

// Organizations lists the names of the organizations that the token reaches. The
// token needs the scope read_organizations.
func (c *Client) Organizations(ctx context.Context) ([]string, error) {
	var all []string
	list, _, err := c.api.Organizations.List(ctx, &buildkite.OrganizationListOptions{ListOptions: buildkite.ListOptions{Page: 1, PerPage: 100}})
	if err != nil {
		return nil, fmt.Errorf("list organizations: %w", plain(err, "read_organizations"))
	}
	for _, o := range list {
		all = append(all, text.Line(o.Slug, maxText))
	}
	return all, nil
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
	path := fmt.Sprintf("v2/organizations/%s/clusters", organization)
	clusters, err := list[cluster](ctx, c, path, url.Values{"per_page": {"100"}})
	if err != nil {
		return nil, fmt.Errorf("list clusters: %w", plain(err, "read_clusters"))
	}
	if len(clusters) > maxClusters {
		return nil, fmt.Errorf("list queues: there are %d clusters, and kbnode asks at most %d", len(clusters), maxClusters)
	}
	var all []string
	for _, cl := range clusters {
		queues, err := list[queue](ctx, c, path+"/"+url.PathEscape(cl.ID)+"/queues", url.Values{"per_page": {"100"}})
		if err != nil {
			return nil, fmt.Errorf("list queues: %w", plain(err, "read_clusters"))
		}
		for _, q := range queues {
			all = append(all, queueLine(q.Key))
		}
	}
	return all, nil
}
