package guard

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/hook"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// site is a site's hooks, which do not run.
type site struct {
	mu    sync.Mutex
	ran   []string         // names, in order
	units []string         // in which they ran, and which one ended before
	fails map[string]error // by name: of the run
	wrong map[string]error // by file: of the check
	hangs bool             // until it is ended
}

// hooks are those of another process.
func (s *site) hooks() siteHooks {
	return siteHooks{
		check: func(file string) error { return s.wrong[file] },
		run: func(ctx context.Context, p systemd.Program) error {
			s.mu.Lock()
			name := p.Args[len(p.Args)-1]
			s.ran, s.units = append(s.ran, name), append(s.units, p.Unit+" after "+p.Ends)
			err, hangs := s.fails[name], s.hangs
			s.mu.Unlock()
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		},
		failed: map[string]bool{},
	}
}

// done returns what ran since the last call.
func (s *site) done() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := strings.Join(s.ran, " ")
	s.ran = nil
	return ran
}

// set changes how a hook ends; nil is well.
func (s *site) set(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[name] = err
}

func newSite() *site { return &site{fails: map[string]error{}, wrong: map[string]error{}} }

// siteRig is a slot with hooks.
type siteRig struct {
	*slotRig
	*site
}

func newSiteRig(t *testing.T) *siteRig {
	t.Helper()
	r := &siteRig{newSlotRig(t), newSite()}
	r.policy.Hooks = &plan.Hooks{Prolog: "/opt/p", Epilog: "/opt/e", LimitSeconds: 60, Node: "box"}
	r.guard.hooks = r.hooks()
	return r
}

// next is the next process of the slot.
func (r *siteRig) next() { r.guard.hooks = r.hooks() }

// job runs the hooks of a job that has begun, in a process of its own, and kills it there.
func (r *siteRig) job(ctx context.Context) (string, error) {
	r.next()
	if err := r.prolog(ctx, false); err != nil {
		return "", err
	}
	return r.parked()
}

// agentEnds removes what is left of a job, in a process of its own.
func (r *siteRig) agentEnds(ctx context.Context) (string, error) {
	r.next()
	if err := r.sweepOnce(ctx); err != nil {
		return "", err
	}
	return r.parked()
}

// agentBegins clears the slot, in a process of its own.
func (r *siteRig) agentBegins(ctx context.Context) (string, error) {
	r.next()
	return r.ended(ctx)
}

// is checks what a step parks the slot with, and which hooks ran in it.
func (r *siteRig) is(step func(context.Context) (string, error), ran, piece string) {
	r.t.Helper()
	r.want(step, piece)
	must.Equal(r.t, ran, r.done())
}

var exit3 = &systemd.EndError{Result: "exit-code", Status: 3}

// TestEpilog runs it once after each job and each boot, whatever ends in between.
func TestEpilog(t *testing.T) {
	t.Parallel()
	r := newSiteRig(t)
	r.is(r.agentBegins, "epilog", "") // after a boot
	r.is(r.agentBegins, "", "")
	r.is(r.agentEnds, "", "") // it had no job
	r.is(r.job, "prolog", "")
	r.is(r.agentEnds, "epilog", "")
	r.is(r.agentBegins, "", "")
	// The process that clears after the agent's end was killed.
	r.is(r.job, "prolog", "")
	r.is(r.agentBegins, "epilog", "")
	// So was that of the job, in its prolog.
	must.Do(t, r.setEpilog(""))
	r.is(r.agentBegins, "epilog", "")
	// A boot.
	must.Do(t, os.RemoveAll(r.runDir()))
	must.Do(t, os.MkdirAll(r.runDir(), 0o755))
	r.is(r.agentBegins, "epilog", "")
	// The configuration changes during a job, and without one.
	r.is(r.job, "prolog", "")
	r.policy.Hooks.Epilog = "/opt/e2"
	r.is(r.agentEnds, "epilog", "")
	r.policy.Hooks.Epilog = "/opt/e3"
	r.is(r.agentBegins, "epilog", "")
	r.is(r.job, "prolog", "")
	r.policy.Hooks = nil
	r.is(r.agentEnds, "", "")
	r.is(r.agentBegins, "", "")
	r.policy.Hooks = &plan.Hooks{Epilog: "/opt/e3", LimitSeconds: 60}
	r.is(r.agentBegins, "epilog", "") // no one recorded that it ran since the job
	r.is(r.job, "", "")
	r.is(r.agentEnds, "epilog", "")
	hooks := r.policy.Hooks // they are absent for a job that begins after it succeeded
	r.policy.Hooks = nil
	r.is(r.job, "", "")
	r.policy.Hooks = hooks
	r.is(r.agentEnds, "epilog", "")
	// One whose process was killed in it does not go on beside the other one.
	const prologUnit, epilogUnit = "kbnode-prolog-gpu0.service", "kbnode-epilog-gpu0.service"
	slices.Sort(r.units)
	must.Equal(t, []string{epilogUnit + " after " + prologUnit, prologUnit + " after " + epilogUnit}, slices.Compact(r.units))
}

// TestFailedEpilog parks the slot until it succeeds, and is tried once by each process.
func TestFailedEpilog(t *testing.T) {
	t.Parallel()
	r := newSiteRig(t)
	r.is(r.agentBegins, "epilog", "")
	r.is(r.job, "prolog", "")
	r.set(hook.Epilog, exit3)
	const reason = "job.epilog /opt/e ended with exit status 3; sudo journalctl -u kbnode-epilog-gpu0.service shows why"
	r.is(r.agentEnds, "epilog", reason)
	r.is(r.agentBegins, "epilog", reason)
	if r.cleared() {
		t.Error("the slot counts as clear")
	}
	r.is(r.waits, "", reason) // by the same process
	r.next()
	r.is(r.waits, "epilog", reason)
	r.next()
	says, err := r.begins(t.Context()) // a job that comes all the same, whose log is for strangers
	must.Do(t, err)
	must.Equal(t, "a hook of the node's failed, and the node's operators see why with kbnode status", says)
	must.Equal(t, "epilog", r.done())
	r.set(hook.Epilog, nil)
	r.is(r.waits, "", reason) // it has failed in this process
	r.next()
	r.is(r.waits, "epilog", "")
	r.is(r.agentBegins, "", "")
	// Without one the slot is free.
	r.set(hook.Epilog, exit3)
	r.is(r.job, "prolog", "")
	r.is(r.agentEnds, "epilog", reason)
	r.policy.Hooks.Epilog = ""
	r.is(r.agentBegins, "", "")
}

// TestFailedProlog parks the slot until it succeeds, each time with the epilog after it. Root's own job parks nothing.
func TestFailedProlog(t *testing.T) {
	t.Parallel()
	r := newSiteRig(t)
	r.is(r.agentBegins, "epilog", "")
	r.set(hook.Prolog, &systemd.EndError{Result: "timeout", Limit: time.Minute})
	must.Err(t, r.prolog(t.Context(), true), "the node's hook job.prolog did not end within 1m0s, and was killed")
	must.Equal(t, "prolog", r.done())
	r.is(r.agentBegins, "epilog", "")
	_, err := r.job(t.Context())
	must.Err(t, err, "the node's hook job.prolog did not end within 1m0s, and was killed")
	if strings.Contains(err.Error(), "/opt") {
		t.Errorf("a job's log shows a path of the node: %v", err)
	}
	must.Equal(t, "prolog", r.done())
	const reason = "job.prolog /opt/p did not end within 1m0s, and was killed; sudo journalctl -u kbnode-prolog-gpu0.service shows why"
	r.is(r.agentEnds, "epilog", reason)
	r.is(r.agentBegins, "prolog epilog", reason)
	r.is(r.waits, "", reason)
	r.next()
	r.set(hook.Epilog, exit3)
	r.is(r.waits, "prolog epilog", "job.epilog /opt/e ended with exit status 3")
	r.next()
	r.set(hook.Prolog, nil)
	r.want(r.waits, "job.epilog /opt/e ended with exit status 3")
	must.Equal(t, "prolog epilog", r.done())
	r.next()
	r.set(hook.Epilog, nil)
	r.is(r.waits, "epilog", "")
	// It is no longer configured.
	r.set(hook.Prolog, exit3)
	_, err = r.job(t.Context())
	must.Err(t, err, "exit status 3")
	r.policy.Hooks.Prolog = ""
	_ = r.done()
	r.is(r.agentBegins, "epilog", "")
}

// TestHooksAfterTheJob run only when nothing of it is left, and before the look at the GPU.
func TestHooksAfterTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSiteRig(t)
		r.broken = errors.New("no Docker engine answers")
		if _, err := r.agentEnds(t.Context()); err == nil {
			t.Error("nothing is left")
		}
		must.Equal(t, "", r.done())
		r.until = time.Now()
		run := r.guard.hooks.run
		r.guard.hooks.run = func(ctx context.Context, p systemd.Program) error {
			if r.checks > 0 || !slices.Contains(r.asked, "checkouts") {
				t.Errorf("cleaned before it: %q, and %d looks at the GPU", r.asked, r.checks)
			}
			return run(ctx, p)
		}
		r.is(r.ended, "epilog", "")
		must.Equal(t, 1, r.checks)
	})
}

// TestWrongFile names what is wrong to the node's owner, and only that something is to a job.
func TestWrongFile(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err    error
		reason string
	}{
		"a file of another user": {&hook.FileError{Why: "/opt/p belongs to user 7, not to root", Fix: "chown root /opt/p"}, "job.prolog: /opt/p belongs to user 7, not to root; type sudo chown root /opt/p"},
		"a disk that hangs":      {errors.New("hook /opt/p: no answer in 10s"), "job.prolog /opt/p could not run: hook /opt/p: no answer in 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSiteRig(t)
			r.is(r.agentBegins, "epilog", "")
			r.wrong["/opt/p"] = row.err
			_, err := r.job(t.Context())
			if err == nil || err.Error() != "the node's hook job.prolog could not run" {
				t.Error(err)
			}
			r.is(r.agentEnds, "epilog", row.reason)
			delete(r.wrong, "/opt/p")
			r.is(r.agentBegins, "prolog epilog", "")
		})
	}
}

// TestCanceledProlog is no fault of the hook's, and its epilog follows.
func TestCanceledProlog(t *testing.T) {
	t.Parallel()
	r := newSiteRig(t)
	r.is(r.agentBegins, "epilog", "")
	r.hangs = true
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(errCanceled) })
	if err := r.prolog(ctx, false); !errors.Is(err, errCanceled) {
		t.Error(err)
	}
	r.hangs = false
	must.Equal(t, "prolog", r.done())
	r.is(r.agentEnds, "epilog", "")
}
