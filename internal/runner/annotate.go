package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	annotationTime = 10 * time.Second // for all attempts
	annotationTry  = 4 * time.Second  // for each of two attempts
)

// agentAPI is how a job reaches Buildkite: the agent's own API, with the token that the
// agent gave the job.
type agentAPI struct {
	endpoint string // the agent's setting: https://agent.buildkite.com/v3
	jobID    string
	token    string
	pause    time.Duration // before the second attempt
}

// newAgentAPI reads the API's settings from a job's environment. annotate refuses if
// some are missing.
func newAgentAPI(public, private []string) agentAPI {
	return agentAPI{
		// The agent's own default; not every container gets the variable.
		endpoint: cmp.Or(getenv(public, "BUILDKITE_AGENT_ENDPOINT"), "https://agent.buildkite.com/v3"), jobID: getenv(public, "BUILDKITE_JOB_ID"),
		// A copy, so that the token does not keep the payload beside it in memory.
		token: strings.Clone(getenv(private, "BUILDKITE_AGENT_ACCESS_TOKEN")), pause: time.Second,
	}
}

// annotate puts a text on the build's page. Jobs of one build do not overwrite each
// other's texts.
func (a agentAPI) annotate(ctx context.Context, body, style string) error {
	switch {
	case a.token == "":
		return errors.New("BUILDKITE_AGENT_ACCESS_TOKEN is not set here; kbnode's nodes keep it out of containers")
	case a.jobID == "":
		return errors.New("BUILDKITE_JOB_ID is not set here; pass it to the container")
	}
	base, err := url.Parse(a.endpoint)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return errors.New("BUILDKITE_AGENT_ENDPOINT is not an HTTP URL")
	}
	doc, err := json.Marshal(map[string]any{"body": body, "style": style, "context": "kbnode-" + a.jobID, "append": false})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, annotationTime)
	defer cancel()
	target := base.JoinPath("jobs", url.PathEscape(a.jobID), "annotations").String()
	again, err := a.post(ctx, target, doc)
	if !again {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(a.pause):
	}
	_, err = a.post(ctx, target, doc)
	return err
}

// post makes one attempt and reports whether to make another. An attempt replaces what
// an earlier one may have left.
func (a agentAPI) post(ctx context.Context, target string, doc []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, annotationTry)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(doc))
	if err != nil {
		return false, fmt.Errorf("ask agent API: %w", err)
	}
	req.Header.Set("Authorization", "Token "+a.token)
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the token is for this address only
	}}
	resp, err := client.Do(req)
	if err != nil {
		return true, fmt.Errorf("ask agent API: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read as far as it is wanted
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return false, nil
	}
	var answer struct{ Message string }
	data, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil || json.Unmarshal(data, &answer) != nil {
		answer.Message = ""
	}
	again = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500
	return again, fmt.Errorf("ask agent API: it answered %s", text.Line(strings.TrimSpace(resp.Status+" "+answer.Message), 200))
}
