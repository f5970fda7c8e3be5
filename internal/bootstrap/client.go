package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// serviceAway is how long a service that is being restarted may take to answer again.
	serviceAway = time.Minute
	servicePoll = 250 * time.Millisecond
	cancelPoll  = time.Second
	// maxPipeline bounds a pipeline's file in bytes, as the service does.
	maxPipeline = 1 << 20
)

// client speaks to the slot's service about one job.
type client struct {
	http           *http.Client
	body           []byte
	stdout, stderr int64 // bytes of output that were read
	answered       bool  // the last request was
	away           time.Duration
}

func newClient(socket string, spec *job.Spec) (*client, error) {
	body, err := spec.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write the spec: %w", err)
	}
	return &client{body: body, away: serviceAway, http: slot.Client(socket)}, nil
}

const (
	// waitAway is how long RunSpec waits for a service that is away, and waitCanceled for the end of a job
	// that it canceled.
	waitAway     = 5 * time.Second
	waitCanceled = 10 * time.Second
)

// RunSpec has a slot's service run a job for root, and calls each with what it says. When ctx ends, it
// cancels the job and waits for its end; a slow one ends by itself.
func RunSpec(ctx context.Context, socket string, spec *job.Spec, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	c, err := newClient(socket, spec)
	if err != nil {
		return slot.Outcome{}, err
	}
	c.away = waitAway
	defer c.http.CloseIdleConnections()
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(waitCanceled, end)
		c.cancel(running, spec.JobID)
	})()
	return c.run(running, each)
}

// run runs the job. Where the stream breaks off, it goes on.
func (c *client) run(ctx context.Context, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	last := time.Now() // when the service was there
	for {
		began := time.Now()
		o, err := c.attempt(ctx, func(kind slot.FrameKind, data []byte) {
			last = time.Now()
			switch kind {
			case slot.FrameStdout:
				c.stdout += int64(len(data))
			case slot.FrameStderr:
				c.stderr += int64(len(data))
			}
			each(kind, data)
		})
		if err == nil {
			return o, nil
		}
		if _, ok := errors.AsType[*statusError](err); ok {
			return o, err
		}
		if c.answered && time.Since(began) > c.away/10 { // not one that dies of this job
			last = time.Now()
		}
		if time.Since(last) > c.away {
			return o, fmt.Errorf("%w: %w", errGone, err)
		}
		if err := limit.Sleep(ctx, servicePoll); err != nil {
			return o, err
		}
	}
}

// statusError is an answer of the service that another try does not change.
type statusError struct{ text string }

func (e *statusError) Error() string { return e.text }

func (c *client) attempt(ctx context.Context, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	query := url.Values{slot.StdoutParam: {strconv.FormatInt(c.stdout, 10)}, slot.StderrParam: {strconv.FormatInt(c.stderr, 10)}}
	resp, err := c.post(ctx, slot.RunPath+"?"+query.Encode(), bytes.NewReader(c.body))
	c.answered = err == nil
	if err != nil {
		return slot.Outcome{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusForbidden {
		return slot.Outcome{Refused: slot.Message(resp)}, nil
	}
	if resp.StatusCode != http.StatusOK {
		return slot.Outcome{}, &statusError{slot.Message(resp)}
	}
	return slot.ReadFrames(resp.Body, each)
}

// cancel asks the service to end a job, until ctx is done: it may be away, or not know the job yet.
func (c *client) cancel(ctx context.Context, id string) {
	for ctx.Err() == nil {
		if resp, err := c.post(ctx, slot.CancelPath+"?"+url.Values{slot.JobParam: {id}}.Encode(), nil); err == nil {
			_ = resp.Body.Close()
		}
		_ = limit.Sleep(ctx, cancelPoll)
	}
}

// refusedTime is how long the service has to hear of a job that it does not get.
const refusedTime = 5 * time.Second

// tellRefused tells the service of a job that it does not get: it would count the agent as one that failed, and let
// the slot wait.
func (c Config) tellRefused(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refusedTime)
	defer cancel()
	service := client{http: slot.Client(c.Socket)}
	defer service.http.CloseIdleConnections()
	if resp, err := service.post(ctx, slot.RefusedPath, nil); err == nil {
		_ = resp.Body.Close()
	}
}

func (c *client) post(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://slot"+path, body)
	if err != nil {
		return nil, err
	}
	return c.http.Do(req)
}

var (
	// agentVars are the variables of the agent that its commands need.
	agentVars = []string{"BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_ENDPOINT", "BUILDKITE_JOB_ID"}
	// nodeVars are those that an operator or Buildkite may give the agent, so that it reaches Buildkite. They
	// count only where no build sent them.
	nodeVars = []string{"BUILDKITE_NO_HTTP2", "BUILDKITE_REQUEST_HEADER_*", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)

// ofNode reports whether a variable is one of nodeVars that no build sent.
func (c Config) ofNode(name string) bool {
	_, set := c.Input.Env[name]
	return set && job.Matches(nodeVars, name) && !slices.ContainsFunc(c.Input.Sent, func(v job.Var) bool { return v.Name == name })
}

// agent runs a command of buildkite-agent in a directory, in a process group of its own, which a
// cancellation does not reach.
func (c Config) agent(ctx context.Context, dir string, stdin io.Reader, args ...string) error {
	cmd := exec.CommandContext(ctx, c.Agent, args...)
	cmd.Dir, cmd.Stdin = dir, stdin
	// Without programs to find: `pipeline upload` would ask git about the commit.
	cmd.Env = []string{"PATH=/nonexistent", "HOME=/nonexistent"}
	for name, value := range c.Input.Env {
		if job.Matches(agentVars, name) || c.ofNode(name) {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Stdout, cmd.Stderr = c.Log, c.Log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = endTime / 2
	return cmd.Run()
}
