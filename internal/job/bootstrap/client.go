package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/environ"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// slotAway is how long a slot that refuses connections may take to take one, as while the job before ends.
	slotAway = 3 * time.Minute
	slotPoll = 250 * time.Millisecond
	// rootAway is slotAway for root, and waitCanceled is how long root waits for the end of a job that it canceled.
	rootAway     = 5 * time.Second
	waitCanceled = 10 * time.Second
)

// RunSpec has a slot run a job for root, and calls each with what it says. When ctx ends, it cancels the job and waits
// for its end; a slow one ends by itself.
func RunSpec(ctx context.Context, socket string, spec *job.Spec, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(waitCanceled, end) })()
	return runSpec(running, ctx, socket, rootAway, spec, each)
}

// NotReadyError is why no job of a slot could start now.
type NotReadyError struct{ Reason string }

func (e *NotReadyError) Error() string { return e.Reason }

// checkAway is how long a slot's socket may be away for Check: systemd may be restarting it.
const checkAway = 2 * time.Second

// Check asks a slot whether a job could start now. The error is a *NotReadyError if the slot says why not.
func Check(ctx context.Context, socket string) error {
	o, err := ask(ctx, ctx, socket, checkAway, slot.RequestCheck, nil, func(slot.FrameKind, []byte) {})
	if err == nil && o.Refused+o.NodeFault != "" {
		err = &NotReadyError{o.Refused + o.NodeFault}
	}
	return err
}

// clearAway is how long a slot's socket may be away before its agent starts: it is being restarted.
const clearAway = 15 * time.Second

const (
	// endedAway is clearAway after an agent's end, as when the machine goes down, and endedTime is for all of it: an epilog may
	// take ten minutes, and the one before it that was interrupted.
	endedAway, endedTime = 2 * time.Second, 25 * time.Minute
	// reportTime is how long a report may take: systemd starts no process while Docker starts.
	reportTime = time.Minute
)

// Clear has a slot cleared before its agent starts, and waits while the slot is parked.
func Clear(ctx context.Context, socket string) error {
	for when := slot.ClearStart; ; when = slot.ClearAgain {
		o, err := askWord(ctx, socket, clearAway, slot.RequestClear, when)
		if err != nil {
			return fmt.Errorf("clear the slot: %w", err)
		}
		if o.Reason == "" {
			return nil
		}
	}
}

// ClearEnded has what is left of a job removed after the agent's end.
func ClearEnded(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, endedTime)
	defer cancel()
	if _, err := askWord(ctx, socket, endedAway, slot.RequestClear, slot.ClearEnded); err != nil {
		return fmt.Errorf("clear the slot: %w", err)
	}
	return nil
}

// Report tells a slot how far its agent came: slot.RegisteredName or slot.WorkedName.
func Report(ctx context.Context, socket, name string) error {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	if _, err := askWord(ctx, socket, rootAway, slot.RequestReport, name); err != nil {
		return fmt.Errorf("report that the agent has %s: %w", name, err)
	}
	return nil
}

// askWord sends a request with one word. What the slot refuses is an error.
func askWord(ctx context.Context, socket string, away time.Duration, kind byte, word string) (slot.Outcome, error) {
	o, err := ask(ctx, ctx, socket, away, kind, []byte(word), func(slot.FrameKind, []byte) {})
	if err == nil && o.Refused+o.NodeFault != "" {
		err = errors.New(o.Refused + o.NodeFault)
	}
	return o, err
}

func runSpec(ctx, canceled context.Context, socket string, away time.Duration, spec *job.Spec, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	body, err := spec.Marshal()
	if err != nil {
		return slot.Outcome{}, fmt.Errorf("write the spec: %w", err)
	}
	return ask(ctx, canceled, socket, away, slot.RequestRun, body, each)
}

// ask sends a slot a request until it is taken, and reads the answer. It cancels the request when canceled ends, and gives it
// up when ctx ends.
func ask(ctx, canceled context.Context, socket string, away time.Duration, kind byte, body []byte, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	for began := time.Now(); ; {
		taken := false
		o, err := attempt(ctx, canceled, socket, kind, body, func(kind slot.FrameKind, data []byte) {
			taken = true
			if kind != slot.FrameTaken {
				each(kind, data)
			}
		})
		switch {
		case err == nil:
			return o, nil
		case taken:
			return o, fmt.Errorf("the slot's process has ended before its job, of which nothing more is known: %w", err)
		case canceled.Err() != nil:
			return o, fmt.Errorf("the job was canceled before it started: %w", err)
		case time.Since(began) > away:
			return o, fmt.Errorf("%w: %w", errGone, err)
		}
		if err := limit.Sleep(canceled, slotPoll); err != nil {
			return o, fmt.Errorf("the job was canceled before it started: %w", err)
		}
	}
}

func attempt(ctx, canceled context.Context, socket string, kind byte, body []byte, each func(slot.FrameKind, []byte)) (slot.Outcome, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return slot.Outcome{}, err
	}
	defer conn.Close() //nolint:errcheck // the answer was read, or is given up
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer context.AfterFunc(canceled, func() { _ = conn.(*net.UnixConn).CloseWrite() })()
	sent := slot.WriteRequest(conn, kind, body)
	o, err := slot.ReadFrames(conn, each) // also the answer to a request of which the slot read no more
	if err != nil {
		err = cmp.Or(sent, err)
	}
	return o, err
}

var (
	// agentVars are the variables of the agent that its commands need.
	agentVars = []string{"BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_ENDPOINT", "BUILDKITE_JOB_ID"}
	// nodeVars are those that an operator or Buildkite may give the agent, so that it reaches Buildkite. They
	// count only where no build sent them.
	nodeVars = append([]string{"BUILDKITE_NO_HTTP2", "BUILDKITE_REQUEST_HEADER_*"}, environ.Network...)
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
