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

// collect reads all pages of a list. scope is what the token needs.
func collect[T any](what, scope string, read func(buildkite.ListOptions) ([]T, *buildkite.Response, error)) ([]T, error) {
	var all []T
	err := pages(func(page int) (int, error) {
		some, resp, err := read(buildkite.ListOptions{Page: page, PerPage: 100})
		if err != nil {
			return 0, plain(err, scope)
		}
		all = append(all, some...)
		return resp.NextPage, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return all, nil
}

// Pipelines lists the names of an organization's pipelines. The token needs the scope
// read_pipelines.
func (c *Client) Pipelines(ctx context.Context, organization string) ([]string, error) {
	list, err := collect("pipelines", "read_pipelines", func(o buildkite.ListOptions) ([]buildkite.Pipeline, *buildkite.Response, error) {
		return c.api.Pipelines.List(ctx, organization, &buildkite.PipelineListOptions{ListOptions: o})
	})
	var all []string
	for _, p := range list {
		all = append(all, p.Slug)
	}
	return all, err
}

// Organizations lists the names of the organizations that the token reaches. The
// token needs the scope read_organizations.
func (c *Client) Organizations(ctx context.Context) ([]string, error) {
	list, err := collect("organizations", "read_organizations", func(o buildkite.ListOptions) ([]buildkite.Organization, *buildkite.Response, error) {
		return c.api.Organizations.List(ctx, &buildkite.OrganizationListOptions{ListOptions: o})
	})
	var all []string
	for _, o := range list {
		all = append(all, text.Line(o.Slug, maxText))
	}
	return all, err
}

// maxClusters bounds the clusters whose queues are listed, with one request each.
const maxClusters = 20

// ClusterQueues lists the names of the queues of an organization's clusters, with
// or without agents. The token needs the scope read_clusters.
func (c *Client) ClusterQueues(ctx context.Context, organization string) ([]string, error) {
	clusters, err := collect("clusters", "read_clusters", func(o buildkite.ListOptions) ([]buildkite.Cluster, *buildkite.Response, error) {
		return c.api.Clusters.List(ctx, organization, &buildkite.ClustersListOptions{ListOptions: o})
	})
	if err != nil {
		return nil, err
	}
	if len(clusters) > maxClusters {
		return nil, fmt.Errorf("list queues: there are %d clusters, and kbnode asks at most %d", len(clusters), maxClusters)
	}
	var all []string
	for _, cl := range clusters {
		queues, err := collect("queues", "read_clusters", func(o buildkite.ListOptions) ([]buildkite.ClusterQueue, *buildkite.Response, error) {
			return c.api.ClusterQueues.List(ctx, organization, url.PathEscape(cl.ID), &buildkite.ClusterQueuesListOptions{ListOptions: o})
		})
		if err != nil {
			return nil, err
		}
		for _, q := range queues {
			all = append(all, queueLine(q.Key))
		}
	}
	return all, nil
}
