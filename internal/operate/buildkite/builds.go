package buildkite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RunIDKey is the meta-data key that identifies a build if the response to its
// creation was lost.
const RunIDKey = "run_id"

// NewBuild is a request for a build. Steps, in the form of a pipeline's steps,
// replace the pipeline's own: Buildkite accepts them, but does not document it.
type NewBuild struct {
	Commit   string            `json:"commit"`
	Branch   string            `json:"branch"`
	Message  string            `json:"message"`
	Env      map[string]string `json:"env,omitempty"`
	MetaData map[string]string `json:"meta_data,omitempty"`
	Steps    any               `json:"steps,omitempty"`
}

// Build is what matters about a build to those who want its result. Times that have
// not come are zero.
type Build struct {
	ID       string            `json:"id"`
	Number   int               `json:"number"` // unique in its pipeline
	State    string            `json:"state"`
	Blocked  bool              `json:"blocked"` // it waits for a person
	URL      string            `json:"web_url"`
	MetaData map[string]string `json:"meta_data"`
	Jobs     []Job             `json:"jobs"`
	Created  time.Time         `json:"created_at"`
	Started  time.Time         `json:"started_at"`
	Finished time.Time         `json:"finished_at"`
}

// Job is one run of a step.
type Job struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"` // script, waiter, manual, trigger
	Name         string    `json:"name"`
	State        string    `json:"state"`
	URL          string    `json:"web_url"`
	ExitStatus   *int      `json:"exit_status"`
	SignalReason string    `json:"signal_reason"`
	Rules        []string  `json:"agent_query_rules"` // key=value
	Retried      bool      `json:"retried"`           // replaced by another job
	Priority     Priority  `json:"priority"`
	Runnable     time.Time `json:"runnable_at"`
	Started      time.Time `json:"started_at"`
	Finished     time.Time `json:"finished_at"`
	Agent        *struct {
		Name string   `json:"name"`
		Tags []string `json:"meta_data"`
	} `json:"agent"`
}

// Priority is that of a job: of those that wait, the one with the highest is next.
type Priority int

// UnmarshalJSON reads {"number": 1}. Of anything else it makes 0: what a build has does not depend on it.
func (p *Priority) UnmarshalJSON(b []byte) error {
	var priority struct {
		Number int `json:"number"`
	}
	_ = json.Unmarshal(b, &priority)
	*p = Priority(priority.Number)
	return nil
}

// Ended reports whether the build will not change again by itself. Of the build
// states (https://buildkite.com/docs/pipelines/configure/build-states), failing
// and canceling are not final.
func (b Build) Ended() bool {
	switch b.State {
	case "passed", "failed", "canceled", "skipped", "not_run", "waiting_failed", "blocked":
		return true
	}
	return false
}

// Scripts returns the build's jobs that run commands, without those that were retried.
func (b Build) Scripts() []Job {
	var all []Job
	for _, j := range b.Jobs {
		if j.Type == "script" && !j.Retried {
			all = append(all, j)
		}
	}
	return all
}

func buildsPath(org, pipeline string) string {
	return fmt.Sprintf("v2/organizations/%s/pipelines/%s/builds", org, pipeline)
}

// Create sends one request for a build. After an error, the build may exist unless [Refused] knows the
// error. The token needs the scope write_builds.
func (c *Client) Create(ctx context.Context, org, pipeline string, b NewBuild) (made Build, err error) {
	_, err = c.do(ctx, http.MethodPost, buildsPath(org, pipeline), nil, b, &made)
	if err == nil && made.Number == 0 {
		err = errors.New("the answer has no build number")
	}
	if err != nil {
		return Build{}, fmt.Errorf("create build: %w", plain(err, "write_builds"))
	}
	return made, nil
}

// Find lists the builds of a pipeline with this value in their meta-data, the latest
// first.
func (c *Client) Find(ctx context.Context, org, pipeline, key, value string) ([]Build, error) {
	return c.builds(ctx, buildsPath(org, pipeline), url.Values{
		"meta_data[" + key + "]": {value}, "exclude_pipeline": {"true"},
	})
}

// Unfinished lists the builds of an organization that are waiting or running.
func (c *Client) Unfinished(ctx context.Context, org string) ([]Build, error) {
	return c.builds(ctx, organizationPath(org, "builds"), url.Values{
		"state[]": {"scheduled", "running", "failing"}, "exclude_pipeline": {"true"},
	})
}

// builds lists builds. A response includes each build's environment with its payload,
// so pages are smaller than the API allows.
func (c *Client) builds(ctx context.Context, path string, query url.Values) ([]Build, error) {
	query.Set("per_page", "30") // at most 1.9 MB each for kbnode's own builds
	return list[Build](ctx, c, "builds", "read_builds", path, query, func(b Build) string { return b.ID })
}

// Build returns a build by its number.
func (c *Client) Build(ctx context.Context, org, pipeline string, number int) (b Build, err error) {
	_, err = c.do(ctx, http.MethodGet, fmt.Sprintf("%s/%d", buildsPath(org, pipeline), number), nil, nil, &b)
	if err != nil {
		return b, fmt.Errorf("read build %d: %w", number, plain(err, "read_builds"))
	}
	return b, nil
}

// Log returns the log of a build's job, as the agent wrote it.
func (c *Client) Log(ctx context.Context, org, pipeline string, number int, job string) (string, error) {
	var log struct {
		Content string `json:"content"`
	}
	_, err := c.do(ctx, http.MethodGet, fmt.Sprintf("%s/%d/jobs/%s/log", buildsPath(org, pipeline), number, url.PathEscape(job)), nil, nil, &log)
	if err != nil {
		return "", fmt.Errorf("read log of build %d: %w", number, plain(err, "read_build_logs"))
	}
	return log.Content, nil
}

// Cancel cancels a build. It does nothing to a build that has ended.
func (c *Client) Cancel(ctx context.Context, org, pipeline string, number int) error {
	_, err := c.api.Builds.Cancel(ctx, org, pipeline, strconv.Itoa(number))
	if err == nil || Refused(err) == http.StatusUnprocessableEntity {
		return nil
	}
	return fmt.Errorf("cancel build %d: %w", number, plain(err, "write_builds"))
}
