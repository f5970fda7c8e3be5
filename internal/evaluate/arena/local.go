package arena

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// patience is how long a runner may take to end what it started.
const patience = 10 * time.Second

// Local returns an Evaluate that runs kbnode runner on this machine, in so many processes at once. Each takes
// over its process, so it cannot be this one. program is kbnode's command.
func Local(jobs int, program ...string) Evaluate {
	return func(ctx context.Context, trials []Trial, done func(int, Evaluation)) {
		var mu sync.Mutex
		var all sync.WaitGroup
		next := make(chan int)
		for range min(max(jobs, 1), len(trials)) {
			all.Go(func() {
				for i := range next {
					e := evaluate(ctx, trials[i], program)
					mu.Lock()
					done(i, e)
					mu.Unlock()
				}
			})
		}
		for i := range trials {
			next <- i // also after an interrupt, so that done hears of each
		}
		close(next)
		all.Wait()
	}
}

// evaluate runs a trial in a temporary directory.
func evaluate(ctx context.Context, t Trial, program []string) (e Evaluation) {
	if ctx.Err() != nil {
		return Evaluation{Err: errors.New("interrupted")}
	}
	dir, err := os.MkdirTemp("", "kbnode-runner-")
	if err != nil {
		return Evaluation{Err: fmt.Errorf("make a directory for the evaluation: %w; set TMPDIR to a directory that you may write to", err)}
	}
	defer func() {
		if err := tree.RemoveAll(dir); err != nil {
			e.Err = errors.Join(e.Err, err)
		}
	}()
	if t.Limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, t.Limit)
		defer stop()
	}
	var notes bytes.Buffer
	cmd := exec.CommandContext(ctx, program[0], append(program[1:], "runner", "--config", "-", "--workdir", dir)...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(t.Payload), &notes
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	err = cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Evaluation{TimedOut: true}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) { // 1: result.json says why
		return Evaluation{Err: fmt.Errorf("run kbnode runner: %w: %.300s", err, strings.TrimSpace(notes.String()))}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Evaluation{Err: fmt.Errorf("read result: %w", err)}
	}
	defer root.Close() //nolint:errcheck // opened for reading
	raw, err := result.ReadFile(root, result.File)
	if err != nil {
		return Evaluation{Err: fmt.Errorf("read result: %w", err)}
	}
	e.Result, e.Err = result.Read(raw)
	found, err := witness.Take(dir, "0") // the runner ended by itself
	e.Err = errors.Join(e.Err, err)
	for _, f := range found[:min(len(found), 1)] {
		e.Witness = f.String()
	}
	return e
}
