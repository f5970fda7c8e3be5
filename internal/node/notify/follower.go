package notify

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	poll = 5 * time.Second
	// retryFirst is the pause after a failure, which doubles up to retryMost. After retryTime, an event counts as missed.
	retryFirst, retryMost, retryTime = 10 * time.Second, 10 * time.Minute, time.Hour
	// maxSent is how many notifications are sent in each window.
	maxSent = 20
	window  = time.Hour
)

// progress is how far a follower is. The log is its queue.
type progress struct {
	Place  events.Place `json:"place"`
	Missed int          `json:"missed"` // events before the place that were not sent, and that no one was told of
	// The window, in which so many were sent: a restart begins no new one.
	Began time.Time `json:"began"`
	Sent  int       `json:"sent"`
}

// follower sends the events of a log to one target.
type follower struct {
	Options
	node string
	to   target
	file string // of its progress

	progress
	said string // the last error, as logged
}

// run sends events until ctx ends.
func (f *follower) run(ctx context.Context) {
	for !f.load() {
		if limit.Sleep(ctx, retryMost) != nil {
			return
		}
	}
	for {
		more, err := f.step(ctx)
		if err != nil {
			f.report(err)
		}
		if ctx.Err() != nil || !more && limit.Sleep(ctx, poll) != nil {
			return
		}
	}
}

// load reads how far the follower is. A new one begins after the newest event.
func (f *follower) load() bool {
	text, err := os.ReadFile(f.file)
	if err == nil {
		err = json.Unmarshal(text, &f.progress)
	}
	if err == nil {
		return true
	}
	if !errors.Is(err, fs.ErrNotExist) {
		f.report(err)
	}
	place, err := f.Events.End()
	if err != nil {
		f.report(err)
		return false
	}
	f.save(place, 0)
	return true
}

func (f *follower) save(place events.Place, missed int) {
	f.Place, f.Missed = place, missed
	text, err := json.Marshal(f.progress)
	if err == nil {
		err = renameio.WriteFile(f.file, append(text, '\n'), 0o600)
	}
	if err != nil {
		f.report(err)
	}
}

// report logs an error once.
func (f *follower) report(err error) {
	if err.Error() != f.said {
		f.said = err.Error()
		f.Log.Warn("notifications fail", "to", f.to.String(), "err", err)
	}
}

// step sends what is next. more is false if there was nothing.
func (f *follower) step(ctx context.Context) (more bool, err error) {
	first, count, _, err := f.pending()
	if err != nil || count == 0 && f.Missed == 0 {
		return false, err
	}
	if passed := time.Since(f.Began); passed >= window || passed < 0 { // the clock was set back
		f.Began, f.Sent = time.Now(), 0
	}
	if f.Sent >= maxSent {
		if limit.Sleep(ctx, window-time.Since(f.Began)) != nil {
			return false, nil
		}
		_, count, last, err := f.pending()
		if err == nil && count > 1 {
			f.save(last, f.Missed+count)
		}
		return true, err
	}
	if f.Missed > 0 {
		// It also finds out whether the target works again; until then, the events wait in the log.
		err := f.deliver(ctx, missed(f.Missed), 0)
		if err == nil {
			f.save(f.Place, 0)
		}
		return true, nil
	}
	err = f.deliver(ctx, first.Event, retryTime)
	if ctx.Err() != nil && err != nil {
		return false, nil
	}
	lost := 0
	if err != nil {
		lost = 1
	}
	f.save(first.after, lost)
	return true, nil
}

type pending struct {
	events.Event
	after events.Place
}

// pending returns the first of the events that are to be sent, how many there are, and the place after the last.
func (f *follower) pending() (first pending, count int, last events.Place, err error) {
	skipped := f.Place
	err = f.Events.ReadFrom(f.Place, func(e events.Event, after events.Place) {
		switch {
		case e.Level == "" && count == 0:
			skipped = after
		case e.Level != "":
			if count == 0 {
				first = pending{e, after}
			}
			last = after
			count++
		}
	})
	if skipped.File != f.Place.File && err == nil { // the log will lose the place
		f.save(skipped, f.Missed)
	}
	f.Place = skipped
	return first, count, last, err
}

// deliver sends an event, and again after a failure until within has passed or the target refuses it. If within is 0, neither
// ends it.
func (f *follower) deliver(ctx context.Context, e events.Event, within time.Duration) error {
	began, doc := time.Now(), encode(f.node, e)
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := f.send(ctx, doc)
		if err == nil {
			f.Sent++
			f.said = ""
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		f.report(err)
		_, refused := errors.AsType[*refusedError](err)
		if within > 0 && (refused || time.Since(began)+pause > within) || limit.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// send tries once. A try that has begun may go on for a while when ctx ends.
func (f *follower) send(ctx context.Context, doc []byte) error {
	trying, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(graceTime, cancel) })()
	return f.to.send(trying, doc)
}
