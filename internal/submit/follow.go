package submit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	batchKey = "batch_id"
	// creators is how many builds are created at once.
	creators = 4
	fetchers = 4
	// cancelTime is how long a canceled build may take to end, since its runner still uploads
	// what it has.
	cancelTime = 3 * time.Minute
	// silence is how long Buildkite may fail to answer before builds are given up.
	silence = 15 * time.Minute
	// late is how long a build that may have been created can take to be seen.
	late = 2 * time.Minute
	// maxTries is how often a build is requested whose creation is not answered.
	maxTries = 6
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
	index     int
	job       Job
	out       Outcome
	build     buildkite.Build
	waiting   time.Time // since when the build waits, by this machine's clock
	running   time.Time
	why       Verdict // why it was canceled
	reason    string
	canceling bool      // cancellation was requested
	tries     int       // requests for the build
	failedAt  time.Time // when the last of them failed; zero while one is under way
	mayExist  bool      // one of them may have created a build
	polls     int       // that have not found the build since then
	fetching  bool
	done      bool
	also      string // appended to the reason
	status    Status
}

// follower owns the runs: only its loop touches them. Slow work runs aside and returns a
// function for the loop to call.
type follower struct {
	Options
	client            *buildkite.Client
	work              context.Context // outlives the caller's context
	batch             string
	runs              []*run
	events            chan func()
	toCreate, toFetch chan struct{}
	began, answered   time.Time
	polling           bool
	ending            bool // the caller's context has ended
	doubles           map[int]bool
	canceling         int       // doubles being canceled
	until             time.Time // when no more doubles can appear
}

func (f *follower) follow(ctx context.Context, stop func()) {
	// A token that may not list builds cannot follow them either.
	_, err := f.client.Find(ctx, f.Org, f.Pipeline, batchKey, f.batch)
	if status := buildkite.Refused(err); status >= 400 && status < 500 {
		for _, r := range f.runs {
			r.out.Err = err
			f.finish(r, NotCreated, err.Error())
		}
		return
	}
	for _, r := range f.runs {
		f.create(ctx, r)
	}
	timer := time.NewTimer(pause(0))
	defer timer.Stop()
	ended := ctx.Done()
	for !f.allDone() {
		select {
		case <-ended:
			ended = nil
			f.async(func() func() {
				if f.Leave != nil && f.Leave() {
					return f.leave
				}
				return func() {
					f.interrupt()
					timer.Reset(0)
					time.AfterFunc(cancelTime+time.Duration(len(f.runs))*slowest, stop)
				}
			})
		case <-f.work.Done():
			f.giveUp("it did not end in time after it was canceled")
			return
		case do := <-f.events:
			do()
		case <-timer.C:
			f.poll(ctx)
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
	return f.canceling == 0 && time.Now().After(f.until)
}

// create creates a job's build, or finds an existing one if Resume is set.
func (f *follower) create(ctx context.Context, r *run) {
	f.report(r, "creating")
	r.tries++
	r.failedAt = time.Time{}
	f.async(func() func() {
		build, err := f.createOne(ctx, r.job)
		return func() {
			status := buildkite.Refused(err)
			switch {
			case err == nil && r.build.Number != 0 && r.build.Number != build.Number:
				f.cancelDouble(r, build) // a look has found another one
			case err == nil:
				f.found(r, build)
			case r.build.Number != 0 || r.done:
				// A look has already found it.
			case errors.Is(err, errNotBegun):
				f.finish(r, Cancelled, err.Error())
			case status > 0 && status < 500:
				r.out.Err = err
				f.finish(r, NotCreated, err.Error())
			default: // looks find out whether it was created
				r.out.Err, r.failedAt, r.polls, r.mayExist = err, time.Now(), 0, r.mayExist || !buildkite.Unsent(err)
				f.logRetry(err)
			}
		}
	})
}

// recreate repeats a creation that failed, unless a poll at that time has found the build. After two polls,
// the server creates nothing more for the last request.
func (f *follower) recreate(ctx context.Context, r *run, at time.Time) {
	if r.done || r.build.Number != 0 || r.failedAt.IsZero() || at.Before(r.failedAt) {
		return
	}
	switch r.polls++; {
	case r.polls < 2:
	case r.tries < maxTries && !f.ending:
		f.create(ctx, r)
	case !r.mayExist:
		f.finish(r, NotCreated, r.out.Err.Error())
	case time.Since(r.failedAt) > late:
		f.finish(r, Unknown, fmt.Sprintf("%v: unknown whether it was created; it has not been seen since; look for its run ID %s", r.out.Err, r.job.RunID))
	}
}

func (f *follower) createOne(ctx context.Context, j Job) (buildkite.Build, error) {
	select {
	case f.toCreate <- struct{}{}:
		defer func() { <-f.toCreate }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return buildkite.Build{}, errNotBegun
	}
	// Do not give up a request in flight: its build must be known, so that it can be canceled.
	ctx = f.work
	if f.Resume {
		found, err := f.client.Find(ctx, f.Org, f.Pipeline, buildkite.RunIDKey, j.RunID)
		if err != nil {
			return buildkite.Build{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return f.client.Create(ctx, f.Org, f.Pipeline, j.Build)
}

// poll reads all builds in progress with one query.
func (f *follower) poll(ctx context.Context) {
	if f.polling {
		return
	}
	f.polling = true
	key, value := batchKey, f.batch
	if len(f.runs) == 1 { // the build may be an earlier command's
		key, value = buildkite.RunIDKey, f.runs[0].job.RunID
	}
	at := time.Now()
	f.async(func() func() {
		within, cancel := context.WithTimeout(f.work, silence)
		defer cancel()
		builds, err := f.client.Find(within, f.Org, f.Pipeline, key, value)
		return func() {
			f.polling = false
			if err != nil {
				f.pollFailed(err)
				return
			}
			f.answered = time.Now()
			for _, b := range builds {
				f.update(b)
			}
			for _, r := range f.runs {
				f.recreate(ctx, r, at)
			}
		}
	})
}

// pollFailed handles a failed poll: it gives up if another will not help, or if all have failed for
// too long.
func (f *follower) pollFailed(err error) {
	if status := buildkite.Refused(err); status >= 400 && status < 500 || time.Since(f.answered) > silence {
		f.giveUp(err.Error())
		return
	}
	f.logRetry(err)
}

func (f *follower) logRetry(err error) {
	if f.Log != nil {
		f.Log(err.Error())
	}
}

func (f *follower) update(b buildkite.Build) {
	for _, r := range f.runs {
		ours := b.MetaData[batchKey] == f.batch || b.Number == r.build.Number // not someone else's with the same run ID
		if r.job.RunID != b.MetaData[buildkite.RunIDKey] || !ours {
			continue
		}
		if r.build.Number != 0 && r.build.Number != b.Number {
			f.cancelDouble(r, b)
			return
		}
		f.found(r, b)
		return
	}
}

// cancelDouble cancels a second build, made by a request that seemed lost.
func (f *follower) cancelDouble(r *run, b buildkite.Build) {
	if b.Ended() || f.doubles[b.Number] {
		return
	}
	if f.doubles == nil {
		f.doubles = map[int]bool{}
	}
	f.doubles[b.Number] = true
	f.canceling++
	f.async(func() func() {
		err := f.client.Cancel(f.work, f.Org, f.Pipeline, b.Number)
		return func() {
			if f.canceling--; err != nil {
				r.also = fmt.Sprintf("; it was created twice, and build %d is still running: %v", b.Number, err)
			}
		}
	})
}

// found updates a run with the current state of its build.
func (f *follower) found(r *run, b buildkite.Build) {
	if r.done || r.fetching {
		return
	}
	now := time.Now()
	if r.waiting.IsZero() {
		r.waiting = now
		if r.mayExist && r.tries > 1 { // another request may create a build, too
			f.until = now.Add(late)
		}
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
