package docker

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
)

// Output is what a container writes.
type Output struct {
	r     io.Reader
	tty   bool // its terminal makes one stream of both
	close func()
}

// Copy copies the output until it ends.
func (o *Output) Copy(stdout, stderr io.Writer) error {
	if o.tty {
		_, err := io.Copy(stdout, o.r)
		return err
	}
	_, err := stdcopy.StdCopy(stdout, stderr, o.r)
	return err
}

// Close ends Copy.
func (o *Output) Close() { o.close() }

// Attach gives the output of a container that has not started yet: all of it.
func (e *Engine) Attach(ctx context.Context, id string, tty bool) (*Output, error) {
	in, err := e.api.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, e.wrap("attach to container "+id, err)
	}
	return &Output{in.Reader, tty, in.Close}, nil
}

// Follow gives the output of a container from the beginning of its log, which ends with the container.
// The engine may take a time to begin.
func (e *Engine) Follow(ctx context.Context, id string, tty bool, within time.Duration) (*Output, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(within, cancel)
	logs, err := e.api.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
	late.Stop()
	if err != nil {
		cancel()
		return nil, e.wrap("read output of container "+id, err)
	}
	return &Output{logs, tty, func() { cancel(); _ = logs.Close() }}, nil
}

// await waits until a container does not run.
func (e *Engine) await(ctx context.Context, id string) error {
	wait := e.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	var err error
	select {
	case err = <-wait.Error:
	case <-ctx.Done():
		err = ctx.Err()
	case <-wait.Result:
	}
	return e.wrap("wait for container "+id, err)
}

// eventTime is how long the engine may take to tell what led to an end that it has told.
const eventTime = 5 * time.Second

// AwaitOwnEnd waits until a container does not run. own reports that the engine saw the container end and had not
// sent it a signal: it does when it is stopped itself, before it stops answering.
func (e *Engine) AwaitOwnEnd(ctx context.Context, id string) (own bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// From the beginning: the engine repeats what it still knows.
	happened := e.api.Events(ctx, client.EventsListOptions{Since: "1", Filters: client.Filters{}.
		Add("type", string(events.ContainerEventType)).Add("container", id).Add("event", string(events.ActionKill), string(events.ActionDie))})
	if err := e.await(ctx, id); err != nil {
		return false, err
	}
	late := time.NewTimer(eventTime)
	defer late.Stop()
	for {
		select {
		case m := <-happened.Messages:
			if m.Actor.ID == id {
				return m.Action == events.ActionDie, nil // a signal comes before
			}
		case <-happened.Err: //nolint:errcheck // it is gone, for whatever reason
			return false, nil
		case <-late.C:
			return false, nil
		case <-ctx.Done():
			return false, nil
		}
	}
}

// Signaled reports whether the engine remembers that it sent a container a signal. One that was restarted remembers
// nothing.
func (e *Engine) Signaled(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	happened := e.api.Events(ctx, client.EventsListOptions{Since: "1", Until: now, Filters: client.Filters{}.
		Add("type", string(events.ContainerEventType)).Add("container", id).Add("event", string(events.ActionKill))})
	for {
		select {
		case m := <-happened.Messages:
			if m.Actor.ID == id && m.Action == events.ActionKill {
				return true, nil
			}
		case err := <-happened.Err:
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, e.wrap("ask what happened to container "+id, err)
		}
	}
}

// Stop ends a container: by SIGTERM, and after grace by SIGKILL. It is not an error if the
// container is gone or has ended.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int(grace.Seconds())
	_, err := e.api.ContainerStop(ctx, id, client.ContainerStopOptions{
		Timeout: &seconds,
		Signal:  "SIGTERM", // An image's own may be one that a command ignores, or that leaves the runner no time for a result. Since Docker 23.
	})
	if errdefs.IsNotFound(err) || errdefs.IsNotModified(err) {
		return nil
	}
	return e.wrap("stop container "+id, err)
}
