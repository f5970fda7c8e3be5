package selftest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/slottest"
)

// serve gives a slot a socket that answers jobs by the name of the probe, such as "memory".
func serve(t *testing.T, s *trial, answers map[string]func(ctx context.Context, frames *slot.Frames) slot.Outcome) {
	t.Helper()
	s.policy.Socket = filepath.Join(t.TempDir(), "s")
	slottest.Serve(t, s.policy.Socket, func(canceled context.Context, kind byte, text []byte, frames *slot.Frames) slot.Outcome {
		spec, err := job.Parse(text)
		if kind != slot.RequestRun || err != nil || spec.Image != image || len(spec.Mounts) != 1 {
			t.Errorf("%c: %s: %v", kind, text, err)
			return slot.Outcome{NodeFault: "no such job"}
		}
		what, _, _ := strings.Cut(strings.TrimPrefix(spec.JobID, "kbnode-selftest-"+s.plan.Name+"-"), "-")
		return answers[what](canceled, frames)
	})
}

type answer = func(context.Context, *slot.Frames) slot.Outcome

// answerWith answers with what a probe saw.
func answerWith(f *probe.Facts) answer {
	return func(_ context.Context, frames *slot.Frames) slot.Outcome {
		text, _ := json.Marshal(f)
		_ = frames.Send(slot.FrameStdout, text)
		return slot.Outcome{}
	}
}

func ends(o slot.Outcome) answer {
	return func(_ context.Context, frames *slot.Frames) slot.Outcome {
		_ = frames.Send(slot.FrameStderr, []byte("it says why\n"))
		return o
	}
}

// TestContainers runs both containers through the slot's socket.
func TestContainers(t *testing.T) {
	t.Parallel()
	whole := func() *probe.Facts {
		f := goodFacts()
		f.Disks["/work"], f.Disks["/etc/hosts"] = 1<<29, 1<<29
		return f
	}
	open := whole()
	open.Writable = []string{"/proc/sys/x"}
	full := ends(slot.Outcome{ExitCode: 137, OutOfMemory: true})
	for name, row := range map[string]struct {
		probe, memory answer
		want          string // what does not hold, and what was seen
		skipped       bool
	}{
		"held":                      {answerWith(whole()), full, "", false},
		"a setting":                 {answerWith(open), full, `settings of the node in /proc: ["/proc/sys/x"] can be written`, false},
		"no limit of memory":        {answerWith(whole()), ends(slot.Outcome{}), "eight times its memory: exit code 0", false},
		"a refusal":                 {ends(slot.Outcome{Refused: "no such mount"}), full, "a container that tries to escape: no such mount", false},
		"a node's fault":            {answerWith(whole()), ends(slot.Outcome{NodeFault: "Docker is away"}), "a container that takes all memory: Docker is away", false},
		"a probe that fails":        {ends(slot.Outcome{ExitCode: 2}), full, "a container that tries to escape: it exited with 2: it says why", false},
		"half an answer":            {answerWith(nil), full, "its memory", false},
		"a job that comes":          {ends(slot.Outcome{ExitCode: 2, Canceled: true}), full, "", true},
		"a job before it starts":    {ends(slot.Outcome{NodeFault: "it was canceled", Canceled: true}), full, "", true},
		"a job during the second":   {answerWith(whole()), ends(slot.Outcome{ExitCode: 137, Canceled: true}), "", true},
		"a job, and what it spoils": {answerWith(open), ends(slot.Outcome{Canceled: true}), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testedSlot()
			s.t.idle = []*trial{s}
			serve(t, s, map[string]answer{"probe": row.probe, "memory": row.memory})
			must.Do(t, s.try(t.Context()))
			var got []string
			for _, c := range s.report.Checks {
				if !c.Held {
					got = append(got, c.Tried+": "+c.Saw)
				}
			}
			if all := strings.Join(got, "\n"); !strings.Contains(all, row.want) || (all == "") != (row.want == "") {
				t.Errorf("does not hold: %s; want %s", all, row.want)
			}
			if (s.report.Skipped != "") != row.skipped || row.skipped && (!strings.HasPrefix(s.report.Skipped, "a job came") || len(s.report.Checks) > 0) {
				t.Errorf("skipped: %q, %+v", s.report.Skipped, s.report.Checks)
			}
		})
	}
}

// TestPlain runs the one container of doctor.
func TestPlain(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	f := goodFacts()
	f.Cgroup["memory.max"] = "8589934592"
	serve(t, s, map[string]answer{"plain": answerWith(f)})
	if checks, err := s.plain(t.Context()); err != nil || len(checks) < 10 || len(bad(checks)) > 0 {
		t.Errorf("%v: %+v", err, checks)
	}
}

// TestTimeWithHooks gives hooks a time of their own, besides the container's.
func TestTimeWithHooks(t *testing.T) {
	t.Parallel()
	must.Equal(t, containerTime, timeOf(plan.JobPolicy{}))
	must.Equal(t, containerTime+30*time.Minute, timeOf(plan.JobPolicy{Hooks: &plan.Hooks{LimitSeconds: 600}}))
}

// TestNeighbor has a container listen in the next slot, and ends it.
func TestNeighbor(t *testing.T) {
	t.Parallel()
	s, other, without := testedSlot(), testedSlot(), testedSlot()
	other.plan.Index, other.plan.Name, without.plan.Index, without.policy.Network = 2, "gpu2", 3, "none"
	var ended atomic.Bool
	serve(t, other, map[string]answer{"listener": func(canceled context.Context, frames *slot.Frames) slot.Outcome {
		_ = frames.Send(slot.FrameStdout, []byte("198.18.2.2:"))
		_ = frames.Send(slot.FrameStdout, []byte("4711\n"))
		<-canceled.Done()
		ended.Store(true)
		return slot.Outcome{Canceled: true}
	}})
	for name, row := range map[string]struct {
		idle []*trial
		want string
	}{
		"a neighbor":        {[]*trial{s, other}, "198.18.2.2:4711"},
		"no other slot":     {[]*trial{s}, ""},
		"without a network": {[]*trial{s, without}, ""},
	} {
		s.t.idle = row.idle
		got, stop := s.neighbor(t.Context())
		stop()
		if got != row.want || ended.Load() != slices.Contains(row.idle, other) {
			t.Errorf("%s: %q, ended: %t", name, got, ended.Load())
		}
		ended.Store(false)
	}
	serve(t, other, map[string]answer{"listener": ends(slot.Outcome{NodeFault: "no"})})
	s.t.idle = []*trial{s, other}
	got, stop := s.neighbor(t.Context())
	stop()
	if got != "" {
		t.Errorf("one that does not start: %q", got)
	}
}

// TestInterrupt cancels the container that runs.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	ctx, interrupt := context.WithCancel(t.Context())
	serve(t, s, map[string]answer{"plain": func(canceled context.Context, _ *slot.Frames) slot.Outcome {
		interrupt()
		<-canceled.Done()
		return slot.Outcome{Canceled: true, ExitCode: 2}
	}})
	s.t.Quick = true
	if err := s.try(ctx); err == nil || s.report.Skipped != "" || len(s.report.Checks) > 0 {
		t.Errorf("%v: %+v", err, s.report)
	}
}
