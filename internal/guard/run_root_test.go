package guard

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// noteKeeper notes for whom jobs begin and end.
type noteKeeper struct {
	runKeeper
	mu    sync.Mutex
	notes []int
}

func (k *noteKeeper) note(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notes = append(k.notes, pid)
}

func (k *noteKeeper) Begin(_ context.Context, pid int) (string, error) {
	k.note(pid)
	return "", nil
}

func (k *noteKeeper) Record(_ context.Context, pid int) (noise.Record, error) {
	k.note(pid)
	return noise.Record{}, keeper.ErrNoRecord
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
	for name, row := range map[string]struct {
		root    int
		pids    []int
		refused string
	}{
		"root":            {os.Getuid(), []int{keeper.NoAgent, keeper.NoAgent}, ""},
		"the slot's user": {-1, []int{os.Getpid()}, `image "img" is not among`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &noteKeeper{}
			r := newRig(t, func(r *rig) { r.keeper, r.root, r.policy.Images = k, row.root, []string{"^other$"} })
			close(r.engine.exit)
			var out strings.Builder
			o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(kind slot.FrameKind, data []byte) {
				if kind == slot.FrameStdout {
					out.Write(data)
				}
				if strings.HasPrefix(out.String(), "hello\n") && kind == slot.FrameStdout {
					_ = (<-r.engine.attached).Close()
				}
			})
			if err != nil || !strings.Contains(o.Refused, row.refused) || (o.Refused == "") != (row.refused == "") {
				t.Errorf("%+v, %v", o, err)
			}
			if row.refused == "" && (o.ExitCode != 7 || out.String() != "hello\n" || r.engine.created[0].Image != "img") {
				t.Errorf("%+v, %q", o, out.String())
			}
			if diff := cmp.Diff(row.pids, k.notes); diff != "" {
				t.Errorf("the keeper: %s", diff)
			}
		})
	}
}

// TestRootIsCanceled cancels root's job when who asked for it has no more time.
func TestRootIsCanceled(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.keeper, r.root = &noteKeeper{}, os.Getuid() })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o, err := bootstrap.RunSpec(ctx, r.socket, rootSpec("x"), func(slot.FrameKind, []byte) { cancel() }); err != nil || !o.Canceled {
			t.Errorf("%+v, %v", o, err)
		}
	}()
	out := <-r.engine.attached
	until(t, "the container to be stopped", func() bool { return (&jobRig{rig: r}).stopped() > 0 })
	close(r.engine.exit)
	_ = out.Close()
	<-done
}

// TestRootIsClearedAway: root's job whose container someone removes, as the keeper does for an agent
// that starts, counts as canceled.
func TestRootIsClearedAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.keeper, r.root = &noteKeeper{}, os.Getuid() })
	o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(kind slot.FrameKind, _ []byte) {
		if kind != slot.FrameStdout {
			return
		}
		r.engine.mu.Lock()
		clear(r.engine.containers)
		r.engine.mu.Unlock()
		close(r.engine.exit)
		_ = (<-r.engine.attached).Close()
	})
	if err != nil || !o.Canceled || !strings.Contains(o.NodeFault, "was removed") {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRootGivesWay: a job ends root's, and root's ends none.
func TestRootGivesWay(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]int{"root's job": keeper.NoAgent, "a job": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := &jobRun{spec: rootSpec("first"), cancel: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{})}
			g := &guard{runs: runs{last: running}}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-running.cancel
				cancel()
			}()
			_, err := g.begin(ctx, rootSpec("second"), pid, nil)
			gives := !isClosed(running.cancel)
			if gives != (pid == keeper.NoAgent) || gives == errors.Is(err, context.Canceled) || gives != notStarted(err).Canceled {
				t.Errorf("it gives way: %t, %v", gives, err)
			}
		})
	}
}
