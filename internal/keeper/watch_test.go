package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// exit ends a process, whose children init adopts.
func (r *slotRig) exit(pid int, orphans ...int) {
	r.t.Helper()
	cgroup := r.cgroups[pid]
	r.kill(pid)
	for _, child := range orphans {
		r.start(child, 1, r.cgroups[child])
	}
	r.list(cgroup)
}

// kill removes a process without a signal.
func (r *slotRig) kill(pid int) {
	r.t.Helper()
	killed, frozen := r.killed, r.frozen
	if err := r.signal(pid, unix.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.killed, r.frozen = killed, frozen
}

// tells calls a stage as the socket does, and forgets what it cleaned.
func (r *slotRig) tells(stage func(context.Context, int) (string, error)) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want(stage, "")
	r.asked = nil
}

// TestUntoldEnd: a job whose hooks were killed, or that was killed itself, leaves nothing behind
// even though no one reports its end.
func TestUntoldEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		before  func(r *slotRig) // the guard starts
		then    func(r *slotRig)
		killed  []int
		cleared bool
	}{
		{
			name:   "killed in the middle",
			before: func(r *slotRig) { r.exit(hookPID); r.exit(bootstrap) },
			then: func(r *slotRig) {
				r.start(hookPID, agentPID, agentCgroup)
				r.tells(r.begin)
				r.exit(hookPID)
				r.start(110, agentPID, agentCgroup) // what runs the job
				r.start(111, 110, agentCgroup)
				r.start(112, 111, agentCgroup)
				r.start(113, 1, jobCgroup)
				time.Sleep(time.Minute)
				if len(r.killed)+len(r.asked) > 0 {
					r.t.Errorf("a running job was disturbed: %v, %v", r.killed, r.asked)
				}
				r.exit(110, 111)
			},
			killed: []int{111, 112, 113}, cleared: true,
		},
		{
			name:   "a guard that was restarted in the middle",
			before: func(r *slotRig) { r.exit(hookPID) },
			then:   func(r *slotRig) { r.start(104, 1, agentCgroup); time.Sleep(10 * time.Second); r.exit(bootstrap) },
			killed: []int{104}, cleared: true,
		},
		{
			name:   "told, and that was a lie",
			before: func(*slotRig) {},
			then: func(r *slotRig) {
				r.tells(r.begin)
				r.tells(r.end)
				r.start(104, hookPID, agentCgroup)
				time.Sleep(endPoll * 3 / 2)
				r.exit(hookPID, 104)
				r.exit(bootstrap)
			},
			killed: []int{104}, cleared: true,
		},
		{
			name:   "told",
			before: func(*slotRig) {},
			then: func(r *slotRig) {
				r.tells(r.begin)
				r.tells(r.end)
				time.Sleep(endPoll * 3 / 2)
				r.exit(hookPID)
				r.exit(bootstrap)
			},
			cleared: true, // no matter who reported it
		},
		{
			name:   "told by the job, which then starts a container",
			before: func(*slotRig) {},
			then: func(r *slotRig) {
				r.tells(r.begin)
				r.tells(r.end)
				r.start(113, 1, jobCgroup)
				time.Sleep(time.Minute)
				r.exit(hookPID)
				r.exit(bootstrap)
			},
			killed: []int{113}, cleared: true,
		},
		{
			name:   "the agent is killed, and the next one about to start",
			before: func(*slotRig) {},
			then: func(r *slotRig) {
				r.tells(r.begin)
				r.start(113, 1, jobCgroup)
				r.exit(hookPID)
				r.exit(bootstrap)
				r.exit(agentPID)
				r.start(200, 1, agentCgroup) // systemd has not reported it yet
				r.status(200, "Uid:", "0 0 0 0")
				r.start(104, 1, agentCgroup)
				r.status(104, "Uid:", "990 990 990 990")
			},
			killed: []int{104, 113}, cleared: true,
		},
		{
			name:   "a job that takes its time to begin",
			before: func(r *slotRig) { r.exit(hookPID); r.exit(bootstrap) },
			then: func(r *slotRig) {
				r.start(hookPID, agentPID, agentCgroup)
				r.tells(r.begin)
				r.exit(hookPID)
				time.Sleep(20 * time.Second)
				r.start(110, agentPID, agentCgroup)
			},
		},
		{
			name:   "a job that was refused after all",
			before: func(r *slotRig) { r.exit(hookPID); r.exit(bootstrap) },
			then: func(r *slotRig) {
				r.start(hookPID, agentPID, agentCgroup)
				r.tells(r.begin)
				r.exit(hookPID)
				time.Sleep(30 * time.Second)
			},
			cleared: true,
		},
		{
			name:   "a slot without a job",
			before: func(r *slotRig) { r.exit(hookPID); r.exit(bootstrap) },
			then:   func(r *slotRig) { r.start(113, 1, jobCgroup) }, // of a self-test
		},
		{
			name:   "no agent",
			before: func(r *slotRig) { r.exit(hookPID); r.exit(bootstrap); r.exit(agentPID) },
			then:   func(r *slotRig) { r.start(113, 1, jobCgroup) },
		},
		{
			name:   "the next job begins meanwhile",
			before: func(r *slotRig) { r.start(104, bootstrap, agentCgroup) },
			then: func(r *slotRig) {
				r.exit(hookPID)
				r.exit(bootstrap, 104)
				r.onKill = func(int) {
					r.onKill = nil
					r.start(120, agentPID, agentCgroup) // its hook waits for us
				}
				r.start(105, 1, agentCgroup)
			},
			killed: []int{104, 105}, cleared: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t)
				tt.before(r)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go r.watchEnd(ctx)
				synctest.Wait()
				tt.then(r)
				time.Sleep(endPoll * (endLooks + 1))
				cancel()
				synctest.Wait()
				if diff := cmp.Diff(tt.killed, r.killed); diff != "" {
					t.Errorf("killed: %s", diff)
				}
				if cleared := len(r.asked) > 0; cleared != tt.cleared {
					t.Errorf("cleared %v", r.asked)
				}
				if pid, err := r.agentPID(t.Context()); tt.name != "no agent" && r.cgroups[agentPID] != "" && (pid != agentPID || err != nil) {
					t.Errorf("the agent is process %d, %v", pid, err)
				}
			})
		})
	}
}
