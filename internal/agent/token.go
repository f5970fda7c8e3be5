package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// ErrTokenRefused says that Buildkite does not take the token.
var ErrTokenRefused = errors.New("Buildkite refuses the agent token") //nolint:staticcheck // a name

// CheckToken asks Buildkite's agent API whether it takes a token, without
// registering an agent. An error that is not ErrTokenRefused leaves the
// question open: the endpoint did not answer, or not to this question.
func CheckToken(ctx context.Context, endpoint, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	// The metrics call takes the registration token and changes nothing:
	// https://buildkite.com/docs/apis/agent-api/metrics
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(endpoint, "/")+"/metrics", nil)
	if err != nil {
		return fmt.Errorf("check agent token: %w", err)
	}
	req.Header.Set("Authorization", "Token "+token)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("check agent token: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %s says %s; copy it anew from Agents, Agent Tokens, and give it with --token-file", ErrTokenRefused, endpoint, resp.Status)
	default:
		return fmt.Errorf("check agent token: %s says %s", endpoint, resp.Status)
	}
}
