package docker

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
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

// Follow gives the output of a container from its log, which ends with the container. A zero since
// is its beginning.
func (e *Engine) Follow(ctx context.Context, id string, tty bool, since time.Time) (*Output, error) {
	opts := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true}
	if !since.IsZero() {
		opts.Since = strconv.FormatFloat(float64(since.UnixNano())/1e9, 'f', 6, 64)
	}
	logs, err := e.api.ContainerLogs(ctx, id, opts)
	if err != nil {
		return nil, e.wrap("read output of container "+id, err)
	}
	return &Output{logs, tty, func() { _ = logs.Close() }}, nil
}

// AwaitEnd waits until a container does not run.
func (e *Engine) AwaitEnd(ctx context.Context, id string) error {
	wait := e.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	var err error
	select {
	case err = <-wait.Error:
	case <-ctx.Done():
		err = ctx.Err()
	case <-wait.Result:
		return nil
	}
	return e.wrap("wait for container "+id, err)
}

// Stop ends a container: by its stop signal, and after grace by SIGKILL. It is not an error if the
// container is gone or has ended.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int(grace.Seconds())
	_, err := e.api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if err == nil || errdefs.IsNotFound(err) || errdefs.IsNotModified(err) {
		return nil
	}
	return e.wrap("stop container "+id, err)
}
