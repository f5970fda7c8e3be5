package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

const (
	sweepTime = 30 * time.Second // eight GPUs without persistence take several seconds
	patience  = 10 * time.Second // for one of them
	maxGPUs   = 256              // the largest machines known have 64
	// locksName is the file whose bytes probes of all GPUs lock, one for each GPU.
	locksName = "nvml-gpus.lock"
)

// sweep reads all GPUs. It kills a probe that hangs on one, and another reads those behind it, as when one crashes. GPUs that hung before are
// not waited for: Silence asks them afterward, as they may keep others from the driver.
func sweep(ctx context.Context, opts Options) (*nvml.Report, error) {
	opts.patience = cmp.Or(opts.patience, patience)
	within, cancel := context.WithTimeout(ctx, cmp.Or(max(0, opts.Timeout), sweepTime))
	defer cancel()
	release, _, err := acquire(within, filepath.Join(opts.runDir, lockName("")))
	if err != nil {
		return nil, err
	}
	defer release()
	hung, count := opts.Silence.recall()
	defer opts.Silence.ask(opts, slices.Collect(maps.Keys(hung)))
	var last *nvml.Report
	var crash error // of a probe, on a GPU
	gpus := map[int]nvml.GPU{}
	for {
		known := slices.Collect(maps.Keys(gpus))
		r, ended, err := round(within, opts, "--skip", list(append(known, slices.Collect(maps.Keys(hung))...)))
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("read the GPUs: %w", ctx.Err())
		case opts.Path == "" && errors.Is(err, errReport) && cmp.Or(opts.source, standard).refuse():
			continue
		case r != nil && errors.Is(err, errCrashed):
			crash = err
		case err != nil && last != nil: // the hanging GPU may keep all others from the driver
			return sum(last, gpus, hung, crash)
		case err != nil:
			return r, err
		}
		if len(hung) > 0 && r.Count != count { // their indices may be those of others
			opts.Silence.forget()
			clear(gpus)
			clear(hung)
			last = nil
			continue
		}
		last, count = r, r.Count
		before := len(gpus) + len(hung)
		for _, g := range r.GPUs {
			gpus[g.Index] = g
			delete(hung, g.Index)
		}
		for _, h := range r.Hung {
			hung[h.Index] = h
		}
		late := within.Err() != nil
		if !late && err == nil { // else it may have been slow; and who crashes is not waited for
			opts.Silence.add(count, r.Hung)
		}
		// It may have hung behind the last GPU.
		if all := len(gpus) + len(hung); ended || late || all == before || all >= count {
			return sum(r, gpus, hung, crash)
		}
	}
}

// sum makes the report about all GPUs. Those that no time was left for count as hung. If no GPU was read, crash says why,
// unless it is nil.
func sum(r *nvml.Report, gpus map[int]nvml.GPU, hung map[int]nvml.Hung, crash error) (*nvml.Report, error) {
	all := *r
	all.GPUs, all.Hung, all.Count = []nvml.GPU{}, nil, 0
	for i := range r.Count {
		if g, ok := gpus[i]; ok {
			all.GPUs = append(all.GPUs, g)
		} else {
			all.Hung = append(all.Hung, cmp.Or(hung[i], nvml.Hung{Index: i}))
		}
	}
	if len(all.GPUs) == 0 && len(all.Hung) > 0 {
		return nil, cmp.Or(crash, fmt.Errorf("NVML does not answer for any GPU: %w", context.DeadlineExceeded))
	}
	return &all, nil
}

// round runs one probe of several GPUs. ended is false if it had to be killed: then the report ends with the GPU that it
// hung on. An error means that it did not even begin with one, or, with a report, that it crashed: on the last GPU of that.
func round(ctx context.Context, opts Options, args ...string) (r *nvml.Report, ended bool, err error) {
	locks, err := os.OpenFile(filepath.Join(opts.runDir, locksName), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err == nil { // as in tryLock, there may be none
		defer locks.Close() //nolint:errcheck // the child has its own
		args = append(args, "--locks")
	} else {
		locks = nil
	}
	c := &child{ended: func() {}, parse: parseLines}
	c.stdout.limit, c.stdout.more = maxOutput, make(chan struct{}, 1)
	if err := c.start(opts, locks, func(path string) *exec.Cmd {
		cmd := exec.Command(path, append([]string{"all"}, args...)...)
		cmd.Stdout = &c.stdout
		return cmd
	}); err != nil {
		return nil, false, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for waiting := true; waiting; {
		select {
		case exit := <-c.exited:
			r, err := c.report(exit)
			if errors.Is(err, errCrashed) {
				if part, failed := parseLines(c.stdout.bytes()); failed == nil && len(part.GPUs)+len(part.Hung) > 0 {
					return part, false, err
				}
			}
			return r, true, err
		case <-c.stdout.more:
			timer.Reset(opts.patience)
		case <-timer.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	exit, stuck := c.kill()
	if exit == nil && stuck == nil { // it had just finished
		r, err := c.report(nil)
		return r, true, err
	}
	why := cmp.Or(ctx.Err(), context.DeadlineExceeded)
	r, err = parseLines(c.stdout.bytes())
	switch {
	case err == nil && len(r.GPUs)+len(r.Hung) > 0:
		return r, false, nil
	case stuck != nil:
		return nil, false, fmt.Errorf("%w: %w", stuck, why)
	}
	return nil, false, fmt.Errorf("the NVML probe did not answer and was killed: %w", why)
}

// parseLines parses what a probe of all GPUs has printed, perhaps not to the end. A GPU that it began with, and no more,
// counts as hung.
func parseLines(data []byte) (*nvml.Report, error) {
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	r, err := Parse(first)
	if err != nil {
		return nil, err
	}
	if r.Count > maxGPUs {
		return nil, fmt.Errorf("%w: it is about %d GPUs", errReport, r.Count)
	}
	for text := range bytes.Lines(rest) {
		if !bytes.HasSuffix(text, []byte("\n")) {
			break // cut off
		}
		var line nvml.Line
		if err := json.Unmarshal(text, &line); err != nil {
			return nil, fmt.Errorf("%w: %w", errReport, err)
		}
		index := -1
		switch {
		case line.Begun != nil:
			index = line.Begun.Index
		case line.GPU != nil:
			index = line.GPU.Index
		}
		if index < 0 || index >= r.Count {
			return nil, fmt.Errorf("%w: it is about GPU %d of %d", errReport, index, r.Count)
		}
		r.Hung = slices.DeleteFunc(r.Hung, func(h nvml.Hung) bool { return h.Index == index })
		if line.GPU != nil {
			r.GPUs = append(r.GPUs, *line.GPU)
		} else {
			r.Hung = append(r.Hung, *line.Begun)
		}
	}
	return r, nil
}

func list(indices []int) string {
	words := make([]string, len(indices))
	for i, n := range indices {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
