package guard

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/hook"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// withSite gives the slot's processes the hooks of a site.
func withSite(s *site) func(*rig) {
	return func(r *rig) {
		r.policy.Hooks = &plan.Hooks{Prolog: "/opt/p", Epilog: "/opt/e", LimitSeconds: 60}
		r.adjust = func(g *guard) { g.hooks = s.hooks() }
	}
}

// TestJobWithHooks runs jobs through the slot's socket.
func TestJobWithHooks(t *testing.T) {
	t.Parallel()
	s := newSite()
	r := ready(t, withSite(s))
	if o := r.try(t); why(o) != "" || o.ExitCode != 7 {
		t.Errorf("%+v", o)
	}
	must.Equal(t, "epilog prolog", s.done()) // the slot was not clear
	must.Equal(t, 1, len(r.engine.created))
	s.set(hook.Prolog, exit3)
	o := r.try(t)
	must.Equal(t, slot.Outcome{NodeFault: "the node's hook job.prolog ended with exit status 3"}, o)
	must.Equal(t, "epilog prolog", s.done())
	must.Equal(t, 1, len(r.engine.created))
	must.Equal(t, slot.Outcome{NodeFault: "the slot is parked: a hook of the node's failed, and the node's operators see why with kbnode status"}, r.try(t))
	s.set(hook.Prolog, nil)
	r.ended.Wait()
	_ = s.done()
	// A job without a container has no hooks: what runs is due since the one before.
	upload := &jobRun{spec: rootSpec("upload"), frames: slot.NewFrames(io.Discard)}
	upload.spec.Kind = job.KindUpload
	_, err := r.guard(t).run(t.Context(), upload)
	must.Err(t, err, "the checkout has no")
	upload.close()
	must.Equal(t, "prolog epilog", s.done())
}

// TestJobOfNodeFault ends with the status by which pipelines run a job again elsewhere.
func TestJobOfNodeFault(t *testing.T) {
	t.Parallel()
	s := newSite()
	s.set(hook.Prolog, exit3)
	r := newJobRig(t, nil, withSite(s))
	r.expect(t, r.wait(t, r.start(t.Context())), bootstrap.ExitNode, "the node's hook job.prolog ended with exit status 3")
	must.Equal(t, 0, r.made())
}

// TestCanceledInProlog ends a job that waits for a prolog at once.
func TestCanceledInProlog(t *testing.T) {
	t.Parallel()
	s := newSite()
	r := newJobRig(t, nil, withSite(s))
	r.change(asRoot)
	must.Do(t, bootstrap.Clear(t.Context(), r.socket))
	r.change(func(r *rig) { r.root = -1 })
	s.mu.Lock()
	s.hangs = true
	s.mu.Unlock()
	done := r.start(t.Context())
	must.Until(t, "the prolog", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return slices.Contains(s.ran, hook.Prolog) })
	r.cancel()
	r.wait(t, done)
	must.Equal(t, 0, r.made())
	_, err := os.Lstat(filepath.Join(filepath.Dir(r.socket), slot.ParkedDir, hook.Prolog+".json"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the slot is parked: %v", err)
	}
}

// TestHooksOfRoot run around a job of root's, too. One that fails parks nothing; the epilog is then due before the next job.
func TestHooksOfRoot(t *testing.T) {
	t.Parallel()
	s := newSite()
	r := ready(t, asRoot, withSite(s))
	if o := r.try(t); why(o) != "" {
		t.Errorf("%+v", o)
	}
	must.Equal(t, "epilog prolog epilog", s.done())
	r.ended.Wait() // else the slot still has that job
	s.set(hook.Epilog, exit3)
	if o := r.try(t); why(o) != "" {
		t.Errorf("%+v", o)
	}
	must.Equal(t, "prolog epilog", s.done())
	parked, err := slot.ReadParked(filepath.Dir(r.socket))
	if err != nil || len(parked) > 0 {
		t.Errorf("%+v, %v", parked, err)
	}
	r.ended.Wait()
	must.Contain(t, r.try(t).NodeFault, "the slot is parked: job.epilog /opt/e ended with exit status 3")
	must.Equal(t, "epilog", s.done())
	r.ended.Wait()
	s.set(hook.Epilog, nil)
	if o := r.try(t); why(o) != "" {
		t.Errorf("%+v", o)
	}
	must.Equal(t, "epilog prolog epilog", s.done())
}

// TestHandoverWithHooks waits for a process that runs both.
func TestHandoverWithHooks(t *testing.T) {
	t.Parallel()
	must.Equal(t, handover, handoverOf(plan.JobPolicy{}))
	must.Equal(t, handover+20*time.Minute, handoverOf(plan.JobPolicy{Hooks: &plan.Hooks{LimitSeconds: 600}}))
}

// TestEpilogAfterWhatIsLeft leaves the epilog due where something of root's job may still run: before the next job it follows what
// removes that.
func TestEpilogAfterWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]string{"a job that ended": "DELETE", "one that did not start": "DELETE POST"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite()
			r := ready(t, asRoot, withSite(s))
			var works atomic.Bool
			r.engine.fault = func(req *http.Request) int {
				if !works.Load() && strings.Contains(refused, req.Method) && strings.Contains(strings.TrimSuffix(req.URL.Path, "/start")+"/", jobContainer+"/") {
					return http.StatusInternalServerError
				}
				return 0
			}
			r.try(t)
			r.ended.Wait()
			must.Equal(t, "epilog prolog", s.done())
			works.Store(true)
			if o := r.try(t); why(o) != "" {
				t.Errorf("%+v", o)
			}
			must.Equal(t, "epilog prolog epilog", s.done())
		})
	}
}
