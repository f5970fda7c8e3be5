package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// asRoot is a rig of root's, whose agent has no job.
func asRoot(r *rig) {
	r.root = os.Getuid()
	if err := os.RemoveAll(filepath.Join(r.cgroup, "buildkite-agent-gpu0.service")); err != nil {
		panic(err)
	}
}

func rootSpec(id string) *job.Spec {
	return &job.Spec{
		Kind: job.KindPlugin, JobID: id, Image: "img", Pull: job.PullMissing, Profile: "compatible", Network: job.NetworkBridge, Mounts: []job.Mount{{Source: ".", Target: "/work"}},
		Checkout: job.Checkout{Mode: job.CheckoutNone},
	}
}

// TestRootRuns an image that jobs may not use, without an agent. The slot's user may not.
func TestRootRuns(t *testing.T) {
	t.Parallel()
	r := ready(t, asRoot, func(r *rig) { r.policy.Images = []string{"^other$"} })
	if o := r.try(t); why(o) != "" || o.ExitCode != 7 || r.engine.created[0].Image != "img" || r.guard.cleaner.running {
		t.Errorf("%+v", o)
	}
	r = ready(t, func(r *rig) { r.policy.Images = []string{"^other$"} })
	if o := r.try(t); !strings.Contains(o.Refused, `image "img" is not among`) {
		t.Errorf("%+v", o)
	}
}

// TestRootIsCanceled cancels root's job when who asked for it has no more time.
func TestRootIsCanceled(t *testing.T) {
	t.Parallel()
	r := newRig(t, asRoot)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o, err := bootstrap.RunSpec(ctx, r.socket, rootSpec("x"), func(slot.FrameKind, []byte) { cancel() }); err != nil || !o.Canceled {
			t.Errorf("%+v, %v", o, err)
		}
	}()
	out := <-r.engine.attached
	until(t, "the container to be stopped", func() bool { return r.engine.asked("/stop?") > 0 })
	r.engine.end()
	_ = out.Close()
	<-done
}

// TestRootIsClearedAway: root's job whose container someone removes, as the cleaner does for an agent
// that starts, counts as canceled.
func TestRootIsClearedAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, asRoot)
	o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(kind slot.FrameKind, _ []byte) {
		if kind != slot.FrameStdout {
			return
		}
		r.engine.mu.Lock()
		clear(r.engine.containers)
		r.engine.mu.Unlock()
		r.engine.end()
		_ = (<-r.engine.attached).Close()
	})
	if err != nil || !o.Canceled || !strings.Contains(o.NodeFault, "was removed") {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRootGivesWay: a job ends root's, and root's ends none.
func TestRootGivesWay(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]int{"root's job": noAgent, "a job": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := newRun(rootSpec("first"), pid, plan.JobPolicy{})
			g := &guard{runs: runs{last: running}}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-running.cancel
				cancel()
			}()
			_, err := g.begin(ctx, newRun(rootSpec("second"), pid, g.policy), nil)
			gives := !isClosed(running.cancel)
			if gives != (pid == noAgent) || gives == errors.Is(err, context.Canceled) || gives != notStarted(err).Canceled {
				t.Errorf("it gives way: %t, %v", gives, err)
			}
		})
	}
}
