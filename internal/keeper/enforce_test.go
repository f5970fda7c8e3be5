package keeper

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEnforce: the guard's clock limits a job's time, whatever the job reports and stops.
func TestEnforce(t *testing.T) {
	t.Parallel()
	const limit = 10 * time.Minute
	for _, tt := range []struct {
		name  string
		limit time.Duration
		act   func(r *slotRig) // what the job does; its process 110 runs the command 111
		pass  time.Duration
		ended []int // processes that were ended
		said  string
		cont  bool // the agent was continued
	}{
		{name: "in time", limit: limit, pass: limit - time.Minute},
		{name: "no limit", pass: 2 * limit},
		{name: "too long", limit: limit, pass: limit + time.Minute, ended: []int{111, 113}, said: "longer than the 10m0s that job.time_limit allows"},
		{name: "with another begin", limit: limit, pass: limit/2 + time.Minute, ended: []int{111, 113}, said: "longer than", act: func(r *slotRig) {
			time.Sleep(limit / 2)
			r.start(114, 111, agentCgroup)
			r.mu.Lock()
			defer r.mu.Unlock()
			if _, err := r.begin(r.t.Context(), 114); err != nil {
				r.t.Error(err)
			}
			r.exit(114)
			r.start(113, 1, jobCgroup) // it was cleared
			r.killed = nil
		}},
		{name: "with an early end", limit: limit, pass: limit + time.Minute, ended: []int{111, 113}, said: "longer than", act: func(r *slotRig) {
			r.start(114, 111, agentCgroup)
			r.mu.Lock()
			defer r.mu.Unlock()
			if _, err := r.end(r.t.Context(), 114); err != nil {
				r.t.Error(err)
			}
			r.exit(114)
			r.start(113, 1, jobCgroup)
			r.killed = nil
		}},
		{name: "its hooks do not end", limit: limit, pass: limit + hookTime + time.Minute, ended: []int{110, 111, 113}, said: "longer than"},
		{name: "it stops its agent", limit: limit, pass: time.Minute, ended: []int{111, 113}, said: "it stopped the slot's agent", cont: true, act: func(r *slotRig) { r.state(agentPID, "T (stopped)") }},
		{name: "it stops its agent for a moment", limit: limit, pass: time.Minute, act: func(r *slotRig) {
			r.state(agentPID, "t (tracing stop)")
			time.Sleep(endPoll)
			r.state(agentPID, "S (sleeping)")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t)
				r.limit = tt.limit
				r.exit(hookPID)
				r.exit(bootstrap)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go r.watchEnd(ctx)
				r.start(hookPID, agentPID, agentCgroup)
				r.tells(r.begin)
				r.exit(hookPID)
				r.start(110, agentPID, agentCgroup)
				r.start(111, 110, agentCgroup)
				r.start(113, 1, jobCgroup)
				r.mu.Lock()
				r.killed = nil
				r.mu.Unlock()
				if tt.act != nil {
					tt.act(r)
				}
				time.Sleep(tt.pass)
				synctest.Wait()
				r.mu.Lock()
				defer r.mu.Unlock()
				ended := slices.DeleteFunc(slices.Clone(r.killed), func(pid int) bool { return pid == 120 })
				slices.Sort(ended)
				if !slices.Equal(ended, tt.ended) {
					t.Errorf("ended %v, want %v", ended, tt.ended)
				}
				if !strings.Contains(r.said, tt.said) || tt.said == "" && r.said != "" {
					t.Errorf("the job's log has %q, want %q", r.said, tt.said)
				}
				if cont := slices.Contains(r.continued, agentPID); cont != tt.cont {
					t.Errorf("the agent was continued: %v", cont)
				}
				cancel()
			})
		})
	}
}

// TestWhy says once why a job was ended.
func TestWhy(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.said = "it ran too long"
	if first, then := r.Why(), r.Why(); first != "it ran too long" || then != "" {
		t.Errorf("%q, then %q", first, then)
	}
}

// TestEnforceOnce: a limit ends one job, and not the next one, which begins at once.
func TestEnforceOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.limit = 10 * time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.watchEnd(ctx)
		r.tells(r.begin)
		r.start(111, bootstrap, agentCgroup)
		time.Sleep(r.limit + time.Minute)
		synctest.Wait()
		r.mu.Lock()
		if !slices.Contains(r.killed, 111) {
			t.Errorf("the first job goes on: %v", r.killed)
		}
		if why := r.agentStarts(200); why != "" {
			t.Error(why)
		}
		r.start(110, 200, agentCgroup)
		r.start(hookPID, 110, agentCgroup)
		if _, err := r.begin(t.Context(), hookPID); err != nil {
			t.Error(err)
		}
		r.exit(hookPID)
		r.start(112, 110, agentCgroup)
		r.killed = nil
		r.mu.Unlock()
		time.Sleep(r.limit - time.Minute)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.killed) > 0 {
			t.Errorf("the next job was disturbed: %v", r.killed)
		}
		cancel()
	})
}
