package submit

import (
	"fmt"
	"time"
)

func (f *follower) checkTimes() {
	for _, r := range f.runs {
		switch {
		case r.done || r.fetching || r.why != "" || r.waiting.IsZero():
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
		if r.done || r.fetching || r.why != "" {
			continue
		}
		r.why, r.reason = Cancelled, "interrupted"
		if r.build.Number != 0 {
			f.cancel(r)
		}
	}
}

// cancel cancels a run's build. Later looks find out when it has ended.
func (f *follower) cancel(r *run) {
	f.report(r, "canceling")
	if r.canceling {
		return
	}
	r.canceling = true
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

// leave stops following builds without canceling them. Results that are there are still fetched.
func (f *follower) leave() {
	for _, r := range f.runs {
		if r.done || r.fetching {
			continue
		}
		if r.build.Number == 0 {
			f.finish(r, Unknown, "interrupted while it was created; look for its run ID "+r.job.RunID)
			continue
		}
		f.finish(r, LeftRunning, "it is still running in Buildkite")
	}
}

func (f *follower) giveUp(why string) {
	for _, r := range f.runs {
		if r.done {
			continue
		}
		text := "outcome unknown: " + why
		if r.build.Number != 0 {
			text += "; it may still be running"
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
