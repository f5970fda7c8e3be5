package guard

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestStarts: the agent starts at once after one that had a job, and waits after one that
// failed.
func TestStarts(t *testing.T) {
	t.Parallel()
	type life struct {
		lasts time.Duration
		job   bool
	}
	for name, tt := range map[string]struct {
		lives []life
		waits time.Duration // how long the next one waits
		last  bool          // Buildkite accepted the last one
	}{
		"accepted":                  {slices.Repeat([]life{{time.Second, false}}, 9), 20 * time.Second, true},
		"the first":                 {nil, 0, false},
		"jobs":                      {[]life{{time.Second, true}, {time.Second, true}, {time.Second, true}}, 0, false},
		"one failure":               {[]life{{time.Second, false}}, 0, false},
		"two":                       {[]life{{time.Second, false}, {time.Second, false}}, 5 * time.Second, false},
		"four":                      {[]life{{time.Second, false}, {time.Second, false}, {time.Second, false}, {time.Second, false}}, 20 * time.Second, false},
		"nine":                      {slices.Repeat([]life{{time.Second, false}}, 9), time.Minute, false},
		"a job between":             {[]life{{time.Second, false}, {time.Second, false}, {time.Second, true}, {time.Second, false}}, 0, false},
		"idle for long, sent away":  {[]life{{time.Hour, false}, {time.Hour, false}, {time.Hour, false}}, 0, false},
		"a restart by hand at last": {[]life{{time.Second, false}, {time.Second, false}, {2 * time.Minute, false}}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1e9, 0)
			var s starts
			pid := 100
			for _, l := range tt.lives {
				s.next(pid, now)
				for s.wait(now) != "" {
					now = now.Add(time.Second)
				}
				s.worked, s.registered = l.job, tt.last
				now = now.Add(l.lasts)
				pid++
			}
			if !s.next(pid, now) || s.next(pid, now) {
				t.Error("who asks for the first time is not told from who asks again")
			}
			must.Equal(t, tt.waits, max(0, s.until.Sub(now)))
			if why := s.wait(now); (why == "") != (tt.waits == 0) {
				t.Errorf("says %q", why)
			}
		})
	}
}

// works begins a job as the service does, and forgets what that cleared.
func (r *slotRig) works() {
	r.t.Helper()
	if why, err := r.begins(r.t.Context()); why != "" || err != nil {
		r.t.Errorf("the job does not begin: %q, %v", why, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = nil
	r.start(113, jobCgroup)
}

// TestWatch: a job leaves nothing behind, however it and its agent end.
func TestWatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		idle    bool // at first, the agent has no job
		then    func(r *slotRig)
		cleared bool // and what the job left is killed
	}{
		{"a job that goes on", false, func(r *slotRig) { r.works(); time.Sleep(time.Hour) }, false},
		{"a job that ended", false, func(r *slotRig) { r.works(); time.Sleep(time.Minute); r.exit(bootstrapPID) }, true},
		{"an agent that is killed", false, func(r *slotRig) { r.works(); r.exit(agentPID); r.exit(bootstrapPID) }, true},
		{"an agent that is killed before its process for the job", false, func(r *slotRig) { r.works(); r.exit(agentPID) }, true},
		{"the next agent is about to start, as root", false, func(r *slotRig) { r.works(); r.exit(agentPID); r.exit(bootstrapPID); r.start(200, agentCgroup) }, true},
		{"a guard that was restarted in the middle", false, func(r *slotRig) { r.start(113, jobCgroup); time.Sleep(time.Minute); r.exit(bootstrapPID) }, true},
		{"a slot without a job, in which a self-test runs", true, func(r *slotRig) { r.start(113, jobCgroup) }, false},
		{"no agent", true, func(r *slotRig) { r.exit(agentPID); r.start(113, jobCgroup) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t)
				if tt.idle {
					r.exit(bootstrapPID)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go r.watch(ctx)
				synctest.Wait()
				tt.then(r)
				time.Sleep(2 * endPoll)
				r.mu.Lock()
				looks := r.checks
				r.mu.Unlock()
				time.Sleep(2 * endPoll)
				cancel()
				synctest.Wait()
				if r.checks != looks {
					t.Errorf("it looks %d times at the GPU, and then %d", looks, r.checks-looks)
				}
				if cleared := len(r.asked) > 0; cleared != tt.cleared || slices.Equal(r.killed, []int{113}) != tt.cleared {
					t.Errorf("cleared %v, killed %v", r.asked, r.killed)
				}
			})
		})
	}
}
