package guard

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// enginePoll is the time between two tries to reach an engine that is being restarted.
	enginePoll = 500 * time.Millisecond
	// drainTime is how long a reader may take for the rest of the output when the container has ended,
	// and canceledDrainTime if the agent does not wait for long.
	drainTime         = 10 * time.Second
	canceledDrainTime = time.Second
)

func (r *jobRun) drainTime() time.Duration {
	if r.canceled.Err() != nil {
		return canceledDrainTime
	}
	return drainTime
}

// position is how much of a job's output its reader has, in bytes.
type position struct{ stdout, stderr int64 }

// follow sends a job's output to its reader, until the job or the reader ends. Where the stream
// breaks off because the engine is restarted, it goes on from the engine's log.
func (g *guard) follow(ctx context.Context, r *jobRun, frames *slot.Frames, has position) {
	g.runs.mu.Lock()
	output := r.output
	r.output = nil // the next reader begins with the log
	g.runs.mu.Unlock()
	skip, logged := position{}, false
	for {
		if output != nil {
			before := has
			reading, stop := context.WithCancel(ctx)
			context.AfterFunc(reading, output.Close)
			go func() { // the engine ends the stream with the container
				select {
				case <-r.exited:
					_ = limit.Sleep(reading, r.drainTime()) // or it was read
					stop()
				case <-reading.Done():
				}
			}()
			err := output.Copy(&counter{frames.Writer(slot.FrameStdout), &has.stdout, skip.stdout}, &counter{frames.Writer(slot.FrameStderr), &has.stderr, skip.stderr})
			cut := reading.Err() != nil
			stop()
			g.log.Debug("output ended", "job", r.spec.JobID, "err", err)
			if cut && ctx.Err() == nil {
				_ = frames.Note("cuts the output here: the job has ended, and the rest was not read in time")
				return
			}
			if logged && has == before { // all slots share the engine: do not ask without a pause
				_ = limit.Sleep(ctx, enginePoll)
			}
		}
		if ctx.Err() != nil {
			return
		}
		in, err := g.inspectJob(ctx, r.container)
		switch {
		case errors.Is(err, docker.ErrNotFound):
			_ = frames.Note("has no more output: the job's container is gone, and what it wrote last may be missing")
			return
		case err == nil && (in.State == nil || !in.State.Running) && output != nil:
			return // it was read to its end
		case err == nil:
			logged = true
			output, skip, err = g.resume(ctx, r, frames, has)
		}
		if err != nil {
			output = nil
			select {
			case <-r.done:
				_ = frames.Note("has no more output: the Docker engine does not give what the job wrote last")
				return
			case <-ctx.Done():
				return
			case <-time.After(enginePoll):
			}
		}
	}
}

// resume gives a job's output from the engine's log, and how much of it the reader has. The engine
// keeps only so much: if the beginning is gone, no count leads to where the reader is. It then gets
// all there is, and is told.
func (g *guard) resume(ctx context.Context, r *jobRun, frames *slot.Frames, has position) (output *docker.Output, skip position, err error) {
	output, err = g.api.Follow(ctx, r.container, r.spec.TTY, g.engineTime)
	if err != nil || g.hasWholeLog(ctx, r.container) { // opened before, so it begins with the first line
		return output, has, err
	}
	_ = frames.Note("lost its place in the job's output: the last of it, up to %d MiB, follows once more, and what it did not read of the rest is missing", logMiB*logFiles)
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
	if p = p[old:]; len(p) == 0 {
		return n, nil
	}
	if _, err := c.to.Write(p); err != nil {
		return 0, err
	}
	*c.has += int64(len(p))
	return n, nil
}
