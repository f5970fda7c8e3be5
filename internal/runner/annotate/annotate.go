// Package annotate puts a summary on a build's page in Buildkite. The program for jobs is without it: an
// HTTP client is half of the program, and a tenth of its start.
package annotate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	totalTime = 10 * time.Second // for all attempts
	tryTime   = 4 * time.Second  // for each of two attempts
)

// pause is before the second attempt.
const pause = time.Second

// Post puts a text on the build's page. Jobs of one build do not overwrite each other's texts.
func Post(ctx context.Context, a result.Annotation) error {
	switch {
	case a.Token == "":
		return errors.New("BUILDKITE_AGENT_ACCESS_TOKEN is not set here; kbnode's nodes keep it out of containers")
	case a.JobID == "":
		return errors.New("BUILDKITE_JOB_ID is not set here; pass it to the container")
	}
	base, err := url.Parse(a.Endpoint)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return errors.New("BUILDKITE_AGENT_ENDPOINT is not an HTTP URL")
	}
	doc, err := json.Marshal(map[string]any{"body": a.Body, "style": a.Style, "context": "kbnode-" + a.JobID, "append": false})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()
	target := base.JoinPath("jobs", url.PathEscape(a.JobID), "annotations").String()
	again, err := post(ctx, target, a.Token, doc)
	if !again {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(pause):
	}
	_, err = post(ctx, target, a.Token, doc)
	return err
}

// post makes one attempt and reports whether to make another. An attempt replaces what
// an earlier one may have left.
func post(ctx context.Context, target, token string, doc []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(doc))
	if err != nil {
		return false, fmt.Errorf("ask agent API: %w", err)
	}
	req.Header.Set("Authorization", "Token "+token)
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
