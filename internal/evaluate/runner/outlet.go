package runner

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// outletRoom is how many bytes of the log wait for a reader. A job's whole log usually takes less than 100 KiB.
	outletRoom = 8 << 20
	// outletPatience is how long the runner waits, in the end, for a reader who takes nothing; canceledPatience
	// is the time for a job that is to end soon.
	outletPatience   = 5 * time.Second
	canceledPatience = time.Second
)

// An outlet writes the log in the background. A reader who stops, as of a pipe, or a terminal whose output is
// stopped, must not stop the job: no program would be ended at its limit, and no signal would count.
type outlet struct {
	mu       sync.Mutex
	waiting  []line
	size     int // bytes that wait
	lost     int // bytes for which there was no room
	running  bool
	progress chan struct{} // has a value if something was written since the last look
}

func newOutlet() *outlet { return &outlet{progress: make(chan struct{}, 1)} }

// line is what one call of Write was given.
type line struct {
	to   io.Writer
	text []byte
}

// writer returns a writer that never blocks, and never fails.
func (o *outlet) writer(to io.Writer) io.Writer { return outletWriter{o, to} }

type outletWriter struct {
	outlet *outlet
	to     io.Writer
}

func (w outletWriter) Write(p []byte) (int, error) {
	o := w.outlet
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.size+len(p) > outletRoom {
		o.lost += len(p)
		return len(p), nil
	}
	if o.lost > 0 {
		note := fmt.Appendf(nil, "kbnode runner: %d bytes of the log are missing: no one read it\n", o.lost)
		o.waiting, o.size, o.lost = append(o.waiting, line{w.to, note}), o.size+len(note), 0
	}
	o.waiting, o.size = append(o.waiting, line{w.to, append([]byte(nil), p...)}), o.size+len(p)
	if !o.running {
		o.running = true
		go o.write()
	}
	return len(p), nil
}

// write writes what waits, and ends when nothing does.
func (o *outlet) write() {
	for next := (line{}); ; {
		o.mu.Lock()
		o.size -= len(next.text)
		o.running = len(o.waiting) > 0
		if o.running {
			next, o.waiting = o.waiting[0], o.waiting[1:]
		}
		running := o.running
		o.mu.Unlock()
		select {
		case o.progress <- struct{}{}:
		default:
		}
		if !running {
			return
		}
		_, _ = next.to.Write(next.text) // a log that cannot be written must not cost the result
	}
}

// flush returns when all is written, or when a reader has taken nothing for as long as patience, or as
// canceledPatience once ctx has ended.
func (o *outlet) flush(ctx context.Context, patience time.Duration) {
	late, canceled := time.NewTimer(patience), ctx.Done()
	defer late.Stop()
	for {
		o.mu.Lock()
		running := o.running
		o.mu.Unlock()
		if !running {
			return
		}
		select {
		case <-o.progress:
			late.Reset(patience)
		case <-canceled:
			patience, canceled = min(patience, canceledPatience), nil
			late.Reset(patience)
		case <-late.C:
			return
		}
	}
}
