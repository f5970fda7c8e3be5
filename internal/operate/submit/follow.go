package submit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	batchKey = "batch_id"
	// atOnce is how many builds are created or fetched at once.
	atOnce = 4
	// cancelTime is how long a canceled build may take to end, since its runner still uploads
	// what it has.
	cancelTime = 3 * time.Minute
	// silence is how long Buildkite may fail to answer before builds are given up.
	silence = 15 * time.Minute
	// slowest is how long each of many requests takes within the rate limit.
	slowest = 5 * time.Second
)

var (
	errNoResult = errors.New("no " + result.File)
	errNotBegun = errors.New("interrupted before it was created")
)

// pause returns the time between two looks: short at first, when most jobs end.
func pause(since time.Duration) time.Duration {
	switch {
	case since < 30*time.Second:
		return 2 * time.Second
	case since < 3*time.Minute:
		return 5 * time.Second
	}
	return 10 * time.Second
}

type run struct {
	index    int
	job      Job
	out      Outcome
	build    buildkite.Build
	waiting  time.Time // since when the build waits, by this machine's clock
	running  time.Time
	why      Verdict // why it was canceled
	reason   string
	canceled time.Time // when cancellation was requested
	fetching bool
	done     bool
	status   Status
}

// follower owns the runs: only its loop touches them. Slow work runs aside and returns a
// function for the loop to call.
type follower struct {
	Options
	client          *buildkite.Client
	work            context.Context // outlives the caller's context
	key, value      string          // the builds' meta-data
	others          bool            // it created none of them, and cancels none
	runs            []*run
	events          chan func()
	busy            chan struct{} // has room for atOnce
	began, answered time.Time
	polling         bool
	ending          bool // the caller's context has ended
}

func (f *follower) follow(ctx context.Context, stop func()) {
	// A token that may not list builds cannot follow them either.
	if _, err := f.client.Find(ctx, f.Org, f.Pipeline, f.key, f.value); err != nil && ctx.Err() == nil {
		for _, r := range f.runs {
			f.finish(r, NotCreated, err.Error())
		}
		return
	}
	for _, r := range f.runs {
		if f.others {
			f.found(r, r.build)
		} else {
			f.create(ctx, r)
		}
	}
	timer := time.NewTimer(pause(0))
	defer timer.Stop()
	ended := ctx.Done()
	for !f.allDone() {
		select {
		case <-ended:
			if f.others {
				f.giveUp("it is no longer followed")
				return
			}
			ended = nil
			f.interrupt()
			timer.Reset(0)
			time.AfterFunc(cancelTime+time.Duration(len(f.runs))*slowest, stop)
		case <-f.work.Done():
			f.giveUp("it did not end in time after it was canceled")
			return
		case do := <-f.events:
			do()
		case <-timer.C:
			f.poll()
			f.checkTimes()
			timer.Reset(pause(time.Since(f.began)))
		}
	}
}

// async runs do in a goroutine, and then has the loop call the function that do returned.
func (f *follower) async(do func() func()) {
	go func() {
		done := do()
		select {
		case f.events <- done:
		case <-f.work.Done():
		}
	}()
}

func (f *follower) allDone() bool {
	for _, r := range f.runs {
		if !r.done {
			return false
		}
	}
	return true
}

// create requests a job's build, once: a build is evaluated at most once. It does not give up a request in
// flight: its build must be known, so that it can be canceled.
func (f *follower) create(ctx context.Context, r *run) {
	f.report(r, "creating")
	f.async(func() func() {
		f.busy <- struct{}{}
		defer func() { <-f.busy }()
		var build buildkite.Build
		err := errNotBegun
		if ctx.Err() == nil {
			build, err = f.client.Create(f.work, f.Org, f.Pipeline, r.job.Build)
		}
		return func() {
			status := buildkite.Refused(err)
			switch {
			case r.build.Number != 0: // a poll has already found it
			case err == nil:
				f.found(r, build)
			case errors.Is(err, errNotBegun):
				f.finish(r, Cancelled, err.Error())
			case status > 0 && status < 500:
				f.finish(r, NotCreated, err.Error())
			default:
				f.finish(r, Unknown, fmt.Sprintf("%v: %s", err, r.unanswered()))
			}
		}
	})
}

// unanswered says how to find out whether a build exists whose creation was not answered.
func (r *run) unanswered() string {
	return "unknown whether it was created; look for run ID " + r.job.RunID
}

// poll reads all builds in progress with one query.
func (f *follower) poll() {
	if f.polling {
		return
	}
	f.polling = true
	f.async(func() func() {
		within, cancel := context.WithTimeout(f.work, silence)
		defer cancel()
		builds, err := f.client.Find(within, f.Org, f.Pipeline, f.key, f.value)
		return func() {
			f.polling = false
			switch status := buildkite.Refused(err); {
			case status >= 400 && status < 500 || err != nil && time.Since(f.answered) > silence: // another will not help
				f.giveUp(err.Error())
				return
			case err != nil:
				f.logRetry(err)
				return
			}
			f.answered = time.Now()
			for _, r := range f.runs {
				for _, b := range builds {
					// Another build of the run is one that someone rebuilt in Buildkite, and theirs.
					if b.MetaData[buildkite.RunIDKey] == r.job.RunID && (r.build.Number == 0 || r.build.Number == b.Number) {
						f.found(r, b)
					}
				}
			}
		}
	})
}

func (f *follower) logRetry(err error) {
	if f.Log != nil {
		f.Log(err.Error())
	}
}

// found updates a run with the current state of its build.
func (f *follower) found(r *run, b buildkite.Build) {
	if r.done || r.fetching {
		return
	}
	now := time.Now()
	if r.waiting.IsZero() {
		r.waiting = now
	}
	if len(b.Jobs) == 0 {
		b.Jobs = r.build.Jobs
	}
	r.build = b
	r.out.Build, r.out.URL, r.out.State = b.Number, b.URL, b.State
	begun := false
	for _, j := range b.Scripts() {
		if j.Agent != nil && j.Agent.Name != "" {
			r.out.Agent, r.out.Tags = text.Line(j.Agent.Name, 100), j.Agent.Tags
		}
		begun = begun || !j.Started.IsZero()
	}
	switch {
	case begun && r.running.IsZero():
		r.running = now
	case !begun && !r.running.IsZero(): // another job took its place and waits
		r.running, r.waiting = time.Time{}, now
	}
	switch {
	case b.Ended():
		f.fetch(r)
	case r.why != "" || f.ending:
		f.cancel(r)
	case begun:
		f.report(r, "running")
	default:
		f.report(r, "waiting")
	}
}

func (f *follower) checkTimes() {
	for _, r := range f.runs {
		switch {
		case r.done || r.fetching:
		case !r.canceled.IsZero() && time.Since(r.canceled) > cancelTime+time.Duration(len(f.runs))*slowest:
			f.finish(r, r.why, r.reason+"; it may still be running: it did not end in time after it was canceled")
		case r.why != "" || r.waiting.IsZero():
		case f.QueueTime > 0 && r.running.IsZero() && time.Since(r.waiting) > f.QueueTime:
			r.why, r.reason = TimedOut, fmt.Sprintf("no agent took it within %s", f.QueueTime)
			f.cancel(r)
		case f.RunTime > 0 && !r.running.IsZero() && time.Since(r.running) > f.RunTime:
			r.why, r.reason = TimedOut, fmt.Sprintf("it did not end within %s", f.RunTime)
			f.cancel(r)
		}
	}
}

// interrupt cancels all builds in progress. Builds that are not known yet are canceled when they
// are seen.
func (f *follower) interrupt() {
	f.ending = true
	for _, r := range f.runs {
		if r.build.Number != 0 && !r.done && !r.fetching {
			f.cancel(r)
		}
	}
}

// cancel cancels a run's build. Later polls find out when it has ended.
func (f *follower) cancel(r *run) {
	f.report(r, "canceling")
	if !r.canceled.IsZero() {
		return
	}
	r.canceled = time.Now()
	if r.why == "" {
		r.why, r.reason = Cancelled, "interrupted"
	}
	number := r.build.Number
	f.async(func() func() {
		err := f.client.Cancel(f.work, f.Org, f.Pipeline, number)
		return func() {
			if err != nil && !r.done {
				f.finish(r, r.why, fmt.Sprintf("%s; it is still running because it could not be canceled: %v", r.reason, err))
			}
		}
	})
}

func (f *follower) giveUp(why string) {
	for _, r := range f.runs {
		if r.done {
			continue
		}
		text := "outcome unknown: " + why
		if r.build.Number != 0 {
			text += "; it may still be running"
		} else {
			text += "; " + r.unanswered()
		}
		f.finish(r, Unknown, text)
	}
}

func (f *follower) finish(r *run, v Verdict, reason string) {
	r.done, r.out.Verdict, r.out.Reason = true, v, reason
	f.report(r, string(v))
}

func (f *follower) report(r *run, state string) {
	s := Status{Build: r.out.Build, URL: r.out.URL, State: state, Agent: r.out.Agent, Since: r.status.Since}
	if !f.others {
		s.RunID = r.job.RunID
	}
	if state != r.status.State {
		s.Since = time.Now()
	}
	if s == r.status {
		return
	}
	r.status = s
	if f.On != nil {
		f.On(r.index, s)
	}
}
