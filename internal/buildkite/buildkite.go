// Package buildkite is the one door to Buildkite's REST API.
package buildkite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/buildkite/go-buildkite/v4"
)

// maxPages bounds a list, of a hundred entries a page.
const maxPages = 20

// Agent is an agent that is connected.
type Agent struct {
	Name, Hostname string
	Tags           []string // key=value
	Paused         bool     // in Buildkite: it is sent no jobs
	PausedNote     string
}

// Client asks with one token.
type Client struct{ api *buildkite.Client }

// New makes a client. base is where the API is, "" for Buildkite's own.
func New(network http.RoundTripper, base, token string) (*Client, error) {
	options := []buildkite.ClientOpt{
		buildkite.WithTokenAuth(token), buildkite.WithUserAgent("kbnode"),
		// The token goes nowhere else.
		buildkite.WithHTTPClient(&http.Client{Transport: hurried{network}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}),
	}
	if base != "" {
		options = append(options, buildkite.WithBaseURL(strings.TrimSuffix(base, "/")+"/"))
	}
	api, err := buildkite.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("connect to Buildkite: %w", err)
	}
	return &Client{api}, nil
}

// hurried gives up where the rate limit is used up: the library would try again for
// a quarter of an hour, whatever the deadline.
type hurried struct{ http.RoundTripper }

func (h hurried) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		_ = resp.Body.Close()
		return nil, errors.New("the API token's rate limit is used up; ask again in a minute")
	}
	return resp, err
}

// Agents lists the connected agents of an organization.
func (c *Client) Agents(ctx context.Context, organization string) ([]Agent, error) {
	var all []Agent
	page := buildkite.ListOptions{Page: 1, PerPage: 100}
	for range maxPages {
		agents, resp, err := c.api.Agents.List(ctx, organization, &buildkite.AgentListOptions{ListOptions: page})
		if err != nil {
			return nil, fmt.Errorf("list agents: %w", plain(err))
		}
		for _, a := range agents {
			agent := Agent{Name: a.Name, Hostname: a.Hostname, Tags: a.Metadata}
			if agent.Paused = a.Paused != nil && *a.Paused; a.PausedNote != nil {
				agent.PausedNote = *a.PausedNote
			}
			all = append(all, agent)
		}
		if page.Page = resp.NextPage; page.Page == 0 {
			break
		}
	}
	return all, nil
}

// plain says what to do about a refusal.
func plain(err error) error {
	refused, is := errors.AsType[*buildkite.ErrorResponse](err)
	if !is || refused.Response == nil {
		return err
	}
	switch refused.Response.StatusCode {
	case http.StatusUnauthorized:
		return errors.New("Buildkite refuses the API token; make one in Personal Settings, API Access Tokens") //nolint:staticcheck // a name
	case http.StatusForbidden:
		return errors.New("the API token may not read agents; give it the scope read_agents")
	case http.StatusNotFound:
		return errors.New("the API token does not reach this organization; tick it in the token's settings")
	}
	return err
}
