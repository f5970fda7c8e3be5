package guard

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// begins begins a job as the service does, and forgets what that cleared.
func (r *slotRig) begins() {
	r.t.Helper()
	if why, err := r.begin(r.t.Context(), bootstrapPID); why != "" || err != nil {
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
		killed  []int
		cleared bool
	}{
		{
			name: "a job that goes on",
			then: func(r *slotRig) { r.begins(); time.Sleep(time.Hour) },
		},
		{
			name:   "a job that ended",
			then:   func(r *slotRig) { r.begins(); time.Sleep(time.Minute); r.exit(bootstrapPID) },
			killed: []int{113}, cleared: true,
		},
		{
			name:   "an agent that is killed",
			then:   func(r *slotRig) { r.begins(); r.exit(agentPID); r.exit(bootstrapPID) },
			killed: []int{113}, cleared: true,
		},
		{
			name:   "an agent that is killed before its process for the job",
			then:   func(r *slotRig) { r.begins(); r.exit(agentPID) },
			killed: []int{113}, cleared: true,
		},
		{
			name: "the next agent is about to start",
			then: func(r *slotRig) {
				r.begins()
				r.exit(agentPID)
				r.exit(bootstrapPID)
				r.start(200, agentCgroup) // as root
			},
			killed: []int{113}, cleared: true,
		},
		{
			name:   "a guard that was restarted in the middle",
			then:   func(r *slotRig) { r.start(113, jobCgroup); time.Sleep(time.Minute); r.exit(bootstrapPID) },
			killed: []int{113}, cleared: true,
		},
		{
			name: "a slot without a job", idle: true,
			then: func(r *slotRig) { r.start(113, jobCgroup) }, // of a self-test
		},
		{
			name: "no agent", idle: true,
			then: func(r *slotRig) { r.exit(agentPID); r.start(113, jobCgroup) },
		},
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
				cancel()
				synctest.Wait()
				if diff := cmp.Diff(tt.killed, r.killed); diff != "" {
					t.Errorf("killed: %s", diff)
				}
				if cleared := len(r.asked) > 0; cleared != tt.cleared {
					t.Errorf("cleared %v", r.asked)
				}
			})
		})
	}
}
