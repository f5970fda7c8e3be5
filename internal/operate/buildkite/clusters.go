package buildkite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Cluster is a group of queues, agents and pipelines of an organization:
// https://buildkite.com/docs/apis/rest-api/clusters
type Cluster struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// maxClusters bounds the clusters that are asked for paused queues: each takes a request.
const maxClusters = 5

// queueKey is what Buildkite allows as a queue's key.
var queueKey = lazy.Regexp(`^[A-Za-z0-9_-]{1,100}$`)

// CheckQueueKey returns an error if no queue can be made with this name.
func CheckQueueKey(key string) error {
	if queueKey().MatchString(key) {
		return nil
	}
	return fmt.Errorf("%.40q cannot be the name of a queue; write letters, digits, - and _, such as b200", key)
}

// Cluster returns the cluster of an organization that has a name, or its only one for "".
func (c *Client) Cluster(ctx context.Context, org, name string) (Cluster, error) {
	all, err := list(ctx, c, "clusters", "read_clusters", organizationPath(org, "clusters"), nil, func(c Cluster) string { return c.ID })
	if err != nil {
		return Cluster{}, err
	}
	var names []string
	for _, one := range all {
		if one.Name == name || name == "" && len(all) == 1 {
			return one, nil
		}
		names = append(names, one.Name)
	}
	switch {
	case len(all) == 0:
		return Cluster{}, errors.New("the organization has no cluster; make one in Buildkite (Agents, New Cluster), or ask an administrator")
	case name == "":
		return Cluster{}, fmt.Errorf("the organization has several clusters; add --cluster NAME: %s", Named("", names))
	}
	return Cluster{}, fmt.Errorf("the organization has no cluster %.60q; it has %s", name, Named(name, names))
}

func clusterPath(org string, at Cluster, what string) string {
	return organizationPath(org, "clusters/"+url.PathEscape(at.ID)+"/"+what)
}

// clusterQueue is a queue of a cluster. Buildkite's own machines serve a hosted one.
type clusterQueue struct {
	ID     string          `json:"id"`
	Key    string          `json:"key"`
	Hosted bool            `json:"hosted"`
	Agents json.RawMessage `json:"hosted_agents"`
	Paused bool            `json:"dispatch_paused"`
	Note   string          `json:"dispatch_paused_note"`
}

// CreateQueue makes a self-hosted queue in a cluster, unless there is one of this name: made is then false. A
// hosted one of this name is an error: no node's agents can be in it.
func (c *Client) CreateQueue(ctx context.Context, org string, at Cluster, key, description string) (made bool, err error) {
	there, err := c.clusterQueue(ctx, org, at, key)
	if err != nil || there {
		return false, err
	}
	body := map[string]string{"key": key, "description": description}
	if _, err = c.do(ctx, http.MethodPost, clusterPath(org, at, "queues"), nil, body, &clusterQueue{}); err == nil {
		return true, nil
	}
	// It was made by someone else just now, or the answer was lost.
	if there, again := c.clusterQueue(ctx, org, at, key); again == nil && there {
		return Refused(err) == 0, nil
	}
	return false, fmt.Errorf("create queue %s: %w", key, plain(err, "write_clusters"))
}

// clusterQueue reports whether a cluster has a self-hosted queue.
func (c *Client) clusterQueue(ctx context.Context, org string, at Cluster, key string) (bool, error) {
	all, err := list(ctx, c, "queues", "read_clusters", clusterPath(org, at, "queues"), nil, func(q clusterQueue) string { return q.ID })
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(q clusterQueue) bool { return q.Key == key })
	if i >= 0 && (all[i].Hosted || len(all[i].Agents) > 0 && string(all[i].Agents) != "null") {
		return false, fmt.Errorf("queue %s is for Buildkite's hosted agents, which cannot be changed; choose another name, or delete it in Buildkite (Agents, %s, Queues)", key, text.Line(at.Name, maxText))
	}
	return i >= 0, nil
}

// pausedQueues returns the queues from which Buildkite dispatches no jobs, and the notes of those who paused them. Clusters
// may have queues of the same name. all is false if there are clusters that were not asked.
func (c *Client) pausedQueues(ctx context.Context, org string) (paused map[string]string, all bool, err error) {
	clusters, err := list(ctx, c, "clusters", "read_clusters", organizationPath(org, "clusters"), nil, func(c Cluster) string { return c.ID })
	if err != nil {
		return nil, false, err
	}
	paused = map[string]string{}
	for _, at := range clusters[:min(len(clusters), maxClusters)] {
		queues, err := list(ctx, c, "queues", "read_clusters", clusterPath(org, at, "queues"), nil, func(q clusterQueue) string { return q.ID })
		if err != nil {
			return nil, false, err
		}
		for _, q := range queues {
			if q.Paused {
				paused[q.Key] = text.Line(q.Note, 4*maxText)
			}
		}
	}
	return paused, len(clusters) <= maxClusters, nil
}

// CreateAgentToken makes a token with which agents register in a cluster. Buildkite tells it only once.
func (c *Client) CreateAgentToken(ctx context.Context, org string, at Cluster, description string) (string, error) {
	var made struct {
		Token string `json:"token"`
	}
	_, err := c.do(ctx, http.MethodPost, clusterPath(org, at, "tokens"), nil, map[string]string{"description": description}, &made)
	if err == nil && (made.Token == "" || strings.ContainsFunc(made.Token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		err = errors.New("the answer has no token")
	}
	if err != nil {
		return "", fmt.Errorf("create agent token: %w", plain(err, "write_clusters"))
	}
	return made.Token, nil
}

// Steps returns the YAML of a pipeline's steps. The token needs the scope read_pipelines.
func (c *Client) Steps(ctx context.Context, org, pipeline string) (string, error) {
	var p struct {
		Configuration string `json:"configuration"`
	}
	if _, err := c.do(ctx, http.MethodGet, organizationPath(org, "pipelines/"+pipeline), nil, nil, &p); err != nil {
		return "", fmt.Errorf("read pipeline: %w", plain(err, "read_pipelines"))
	}
	return p.Configuration, nil
}

// NewPipeline is a request for a pipeline. Configuration is the YAML of its steps.
type NewPipeline struct {
	Name          string `json:"name"`
	Repository    string `json:"repository"`
	Configuration string `json:"configuration"`
	ClusterID     string `json:"cluster_id"`
}

// CreatePipeline makes a pipeline, and returns its name in URLs.
func (c *Client) CreatePipeline(ctx context.Context, org string, p NewPipeline) (slug string, err error) {
	var made struct {
		Slug string `json:"slug"`
	}
	if _, err = c.do(ctx, http.MethodPost, organizationPath(org, "pipelines"), nil, p, &made); err != nil {
		return "", fmt.Errorf("create pipeline: %w", plain(err, "write_pipelines"))
	}
	return text.Line(made.Slug, maxText), nil
}
