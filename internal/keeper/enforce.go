package keeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// hookTime is how long the agent has to end a job by itself after the job's processes were
	// ended: its hooks run, and artifacts are uploaded.
	hookTime = 2 * time.Minute
	// stopLooks is how many checks in a row must find the agent stopped: a debugger stops it for
	// a moment.
	stopLooks = 3
	// outsidePoll is the time between two checks for processes outside the slice.
	outsidePoll = 10 * time.Second
)

// enforcer ends a job that has used up its time, or that stops its agent. Its clock is the
// lifetime, as the guard sees it, of the agent's own process for the job, which the job cannot
// change: nothing that a job reports counts.
type enforcer struct {
	job     int       // the agent's process for the job; 0 before
	since   time.Time // when it was first seen
	ended   time.Time // when the job's processes were ended; zero before
	stopped int       // checks in a row that found the agent stopped
	looked  time.Time // when processes outside the slice were last checked
}

// look checks a running job. It returns at once while the slot is being cleared.
func (e *enforcer) look(ctx context.Context, k *Keeper, agent int) {
	if !k.mu.TryLock() {
		return
	}
	defer k.mu.Unlock()
	now := time.Now()
	if job := k.procs.child(agent, e.job); job != e.job {
		*e = enforcer{job: job, since: now, looked: e.looked}
	}
	if now.Sub(e.looked) > outsidePoll {
		e.looked = now
		if n, err := k.procs.endOutside(ctx); n > 0 || err != nil {
			k.log.Warn("processes of the slot's user killed outside its slice", "processes", n, "err", err)
		}
	}
	if e.stopped++; !k.procs.isStopped(agent) {
		e.stopped = 0
	}
	switch {
	case e.job == 0:
	case !e.ended.IsZero():
		if now.Sub(e.ended) > hookTime {
			e.ended = now
			k.log.Warn("job still running; killing the processes that run it")
			if _, err := k.procs.endWithin(ctx, func(pid int) bool { return pid == agent }); err != nil {
				k.log.Warn("processes of the agent's unit not killed", "err", err)
			}
		}
	case e.stopped >= stopLooks:
		e.end(ctx, k, agent, now, "the job was terminated: it stopped the slot's agent")
	case k.limit > 0 && now.Sub(e.since) > k.limit:
		e.end(ctx, k, agent, now, fmt.Sprintf("the job was terminated: it ran longer than the %s that job.time_limit allows", k.limit))
	}
	if e.stopped >= stopLooks {
		k.resume(agent)
	}
}

// end ends the job but not what runs it, so that the job's log says why.
func (e *enforcer) end(ctx context.Context, k *Keeper, agent int, now time.Time, why string) {
	e.ended = now
	k.log.Warn("job terminated", "reason", why)
	k.endJob(ctx, agent, why)
}

// resume continues a stopped agent, which could not even be asked to end.
func (k *Keeper) resume(agent int) {
	if err := k.procs.signal(agent, unix.SIGCONT, k.procs.owns); err != nil {
		k.log.Warn("agent not resumed", "err", err)
	}
}

// child returns a child process of the agent: before, if it still runs or there is no other.
func (s slotProcs) child(agent, before int) int {
	list, _ := s.within(nil)
	list = slices.DeleteFunc(list, func(pid int) bool { return s.parent(pid) != agent })
	if slices.Contains(list, before) || len(list) == 0 {
		return before
	}
	return list[0]
}

// endJob ends all of the job except the agent and what it runs the job with, so that these can
// finish properly. why goes into the job's log.
func (k *Keeper) endJob(ctx context.Context, agent int, why string) {
	k.said = why
	if agent > 0 {
		_, err := k.procs.endWithin(ctx, func(pid int) bool { return pid == agent || k.procs.parent(pid) == agent })
		if err != nil {
			k.log.Warn("processes of the agent's unit not killed", "err", err)
		}
	}
	if _, err := k.procs.endBeside(ctx); err != nil {
		k.log.Warn("containers not killed", "err", err)
	}
}

// Why returns why the job was ended before its time, and forgets it: "" if it was not.
func (k *Keeper) Why() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	why := k.said
	k.said = ""
	return why
}

// isStopped reports whether a process is stopped by a signal or traced.
func (s slotProcs) isStopped(pid int) bool {
	state := s.status(pid, "State:")
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}
