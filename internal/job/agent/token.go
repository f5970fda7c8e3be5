package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// ErrTokenRefused means that Buildkite does not accept the token.
var ErrTokenRefused = errors.New("Buildkite refuses the agent token") //nolint:staticcheck // a name

// Account is what Buildkite tells anyone who has a registration token.
type Account struct {
	Organization struct {
		Slug string `json:"slug"`
	} `json:"organization"`
	Agents struct {
		// Queues are the queues of the token's cluster.
		Queues map[string]struct {
			Total int `json:"total"` // connected agents
		} `json:"queues"`
	} `json:"agents"`
}

// CheckToken asks Buildkite's agent API whether it accepts a token, without registering
// an agent. Any error other than ErrTokenRefused leaves the question open: the endpoint
// did not answer it.
func CheckToken(ctx context.Context, endpoint, token string) error {
	_, err := AskAccount(ctx, http.DefaultTransport, endpoint, token)
	return err
}

// Reach returns an error, which begins with the endpoint, if nothing there answers as Buildkite may. It sends no token.
func Reach(ctx context.Context, network http.RoundTripper, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	shown := config.HideURL(endpoint)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return fmt.Errorf("%s, which is not a valid address", shown) // err has parts of it
	}
	resp, err := network.RoundTrip(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // it repeats the endpoint
	}
	if err != nil {
		return fmt.Errorf("%s, which does not answer: %w", shown, err)
	}
	_ = resp.Body.Close()
	if s := resp.StatusCode; s >= 500 || s >= 300 && s < 400 || s == http.StatusProxyAuthRequired {
		return fmt.Errorf("%s, which says %s", shown, resp.Status)
	}
	return nil
}

// AskAccount is CheckToken over a given network, and returns what else Buildkite tells.
func AskAccount(ctx context.Context, network http.RoundTripper, endpoint, token string) (*Account, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	// The metrics call takes the registration token and changes nothing:
	// https://buildkite.com/docs/apis/agent-api/metrics
	shown := config.HideURL(endpoint)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(endpoint, "/")+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("check agent token: %s is not a valid address", shown) // err has parts of it
	}
	req.Header.Set("Authorization", "Token "+token)
	client := &http.Client{Transport: network, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // it repeats the endpoint
	}
	if err != nil {
		return nil, fmt.Errorf("check agent token: ask %s: %w", shown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode == http.StatusNotFound && endpoint == config.DefaultEndpoint {
		return AskAccount(ctx, network, config.PollingEndpoint, token) // where it is documented
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%w: %s says %s; copy it again from Agents, Agent Tokens, and pass it with --token-file", ErrTokenRefused, shown, resp.Status)
	default:
		return nil, fmt.Errorf("check agent token: %s says %s", shown, resp.Status)
	}
	account := &Account{}
	if err == nil {
		err = json.Unmarshal(text, account)
	}
	if err != nil {
		return nil, fmt.Errorf("check agent token: %s does not respond like Buildkite: %w", shown, err)
	}
	return account, nil
}
