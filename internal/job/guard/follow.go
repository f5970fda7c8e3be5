package guard

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// enginePoll is the time between two tries to reach an engine that is being restarted.
	enginePoll = 500 * time.Millisecond
	// drainTime is how long a reader may take for the rest of the output when the container has ended,
	// and canceledDrainTime if the agent does not wait for long.
	drainTime         = 10 * time.Second
	canceledDrainTime = time.Second
)

// position is how much of a job's output its client has, in bytes.
type position struct{ stdout, stderr int64 }

// follow sends a job's output to its client until the job has ended, or ctx. Where the stream breaks off because the engine
// is restarted, it goes on from the engine's log.
func (g *guard) follow(ctx context.Context, r *jobRun, c *running) {
	output, has, skip, logged := c.output, position{}, position{}, false
	for {
		if output != nil {
			before := has
			stop := context.AfterFunc(ctx, output.Close)
			err := output.Copy(&counter{r.frames.Writer(slot.FrameStdout), &has.stdout, skip.stdout}, &counter{r.frames.Writer(slot.FrameStderr), &has.stderr, skip.stderr})
			stop()
			output.Close()
			g.log.Debug("output ended", "job", r.spec.JobID, "err", err)
			if logged && has == before { // all slots share the engine: do not ask without a pause
				_ = limit.Sleep(ctx, enginePoll)
			}
		}
		if ctx.Err() != nil {
			_ = r.frames.Note("cuts the output here: the job has ended, and the rest was not read in time")
			return
		}
		in, err := g.inspectJob(ctx, c.id)
		switch {
		case errors.Is(err, docker.ErrNotFound):
			_ = r.frames.Note("has no more output: the job's container is gone, and what it wrote last may be missing")
			return
		case err == nil && (in.State == nil || !in.State.Running) && output != nil:
			return // it was read to its end
		case err == nil:
			logged = true
			output, skip, err = g.resume(ctx, r, c, has)
		}
		if err != nil {
			output = nil
			if limit.Sleep(ctx, enginePoll) != nil {
				_ = r.frames.Note("has no more output: the Docker engine does not give what the job wrote last")
				return
			}
		}
	}
}

// resume gives a job's output from the engine's log, and how much of it the client has. The engine
// keeps only so much: if the beginning is gone, no count leads to where the client is. It then gets
// all there is, and is told.
func (g *guard) resume(ctx context.Context, r *jobRun, c *running, has position) (output *docker.Output, skip position, err error) {
	output, err = g.api.Follow(ctx, c.id, r.spec.TTY, g.engineTime)
	if err != nil || g.hasWholeLog(ctx, c.id) { // opened before, so it begins with the first line
		return output, has, err
	}
	_ = r.frames.Note("lost its place in the job's output: the last of it, up to %d MiB, follows once more, and what it did not read of the rest is missing", logMiB*logFiles)
	return output, position{}, nil
}

// hasWholeLog reports whether the engine still has all output of a container: it has not begun
// another file. Source: moby's daemon/logger/local.
func (g *guard) hasWholeLog(ctx context.Context, id string) bool {
	info, err := g.engineInfo(ctx)
	if err != nil {
		return false
	}
	files, err := os.ReadDir(filepath.Join(info.RootDir, "containers", id, "local-logs"))
	return err == nil && len(files) == 1 && files[0].Name() == "container.log"
}

// counter counts what its reader has, and leaves out what it had before.
type counter struct {
	to   io.Writer
	has  *int64
	skip int64
}

func (c *counter) Write(p []byte) (int, error) {
	n := len(p)
	old := min(c.skip, int64(n))
	c.skip -= old
	p = p[old:]
	if len(p) == 0 {
		return n, nil
	}
	if _, err := c.to.Write(p); err != nil {
		return 0, err
	}
	*c.has += int64(len(p))
	return n, nil
}
