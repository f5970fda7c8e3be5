package acceptance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/test/must"
)

// world is a node of two slots on which everything is OK.
type world struct {
	checks     []doctor.Result
	doctorErr  error
	slots      []selftest.SlotReport
	pullErr    error
	alone, all []image.Evaluation
	evalErr    error
	busy       bool

	killed      time.Time
	back, ready time.Duration // after the kill; < 0 means never
	killErr     error
	limits      [2]time.Duration // to be back, and to register; 0 means ten seconds
}

func well() *world {
	one := func(id string, f ...doctor.Finding) doctor.Result {
		return doctor.Result{ID: id, Status: f[0].Status, Findings: f}
	}
	evaluations := func() []image.Evaluation {
		c := image.Canary{Passed: true, Profile: "strict", Uploadable: true, GPU: "NVIDIA B200", Torch: "2.9", Seconds: 3}
		a, b := image.Evaluation{Canary: c}, image.Evaluation{Canary: c, Index: 1}
		a.Slot, b.Slot, b.Seconds = "gpu0", "gpu1", 4.5
		return []image.Evaluation{a, b}
	}
	return &world{
		checks: []doctor.Result{
			one("agent-running", doctor.Finding{Detail: "registered", Slots: []int{0, 1}}),
			one("buildkite-queue", doctor.Finding{Detail: "b200: 2 agents"}),
			{ID: "buildkite-agents", Status: doctor.Skip, Detail: "no API token"},
			one("container", doctor.Finding{Detail: "its GPU, CPUs and memory", Slots: []int{0, 1}}),
			one("slot-limits", doctor.Finding{Detail: "as planned"}),
			one("noise-swap", doctor.Finding{Status: doctor.Warn, Detail: "swap is on"}),
		},
		slots: []selftest.SlotReport{{Slot: "node", Index: -1, Checks: []selftest.Check{{Held: true}}}, {Slot: "gpu0", Checks: []selftest.Check{{Held: true}, {Held: true}}}},
		alone: evaluations(), all: evaluations(), back: time.Millisecond, ready: 2 * time.Millisecond,
	}
}

func (w *world) Doctor(context.Context) (*doctor.Report, error) {
	r := &doctor.Report{Fit: true, Checks: w.checks}
	r.Fit = r.Count(doctor.Fail) == 0
	return r, w.doctorErr
}
func (w *world) Selftest(context.Context) ([]selftest.SlotReport, error) { return w.slots, nil }
func (w *world) Pull(context.Context) (string, error)                    { return "sha256:abc", w.pullErr }
func (w *world) Evaluate(_ context.Context, atOnce bool) ([]image.Evaluation, error) {
	if atOnce {
		return w.all, w.evalErr
	}
	return w.alone, w.evalErr
}
func (w *world) Idle(context.Context) (int, bool, error) { return 1, !w.busy, nil }
func (w *world) Agent(context.Context, int) (Agent, error) {
	since := time.Since(w.killed)
	switch {
	case w.killed.IsZero():
		return Agent{PID: 10, Registered: true}, nil
	case since < w.back/2:
		return Agent{PID: 10, Registered: true}, nil // systemd has not seen it yet
	case w.back < 0 || since < w.back:
		return Agent{Registered: true}, nil // the previous agent's marker
	}
	return Agent{PID: 11, Registered: w.ready >= 0 && since >= w.ready}, nil
}
func (w *world) Kill(context.Context, int) error { w.killed = time.Now(); return w.killErr }

var seconds = regexp.MustCompile(`after \d+\.\d s`)

func (w *world) walk(t *testing.T) (*Report, map[string]Item) {
	t.Helper()
	var progress []string
	r := &run{Node: w, back: cmp.Or(w.limits[0], 10*time.Second), register: cmp.Or(w.limits[1], 10*time.Second), poll: time.Millisecond}
	report, err := walk(t.Context(), r, func(text string) { progress = append(progress, text) })
	must.Do(t, err)
	if len(progress) != len(items) || progress[0] != fmt.Sprintf("1 of %d: %s", len(items), items[0].about) {
		t.Errorf("progress %q", progress)
	}
	all := map[string]Item{}
	for _, i := range report.Items {
		if (i.Verdict == Passed) != (i.Do == "") {
			t.Errorf("%s is %s, and to do is %q", i.ID, i.Verdict, i.Do)
		}
		i.Saw = seconds.ReplaceAllString(i.Saw, "after N s")
		all[i.ID] = i
	}
	return report, all
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	r, all := well().walk(t)
	got := map[string]string{}
	for id, i := range all {
		got[id] = string(i.Verdict) + ": " + i.Saw
	}
	want := map[string]string{
		"image": "passed: sha256:abc", "doctor": "passed: 4 checks are OK, 1 warn", "agents": "passed: agent-running: registered; buildkite-queue: b200: 2 agents",
		"limits": "passed: container: its GPU, CPUs and memory; slot-limits: as planned", "isolation": "passed: 3 attempts, all blocked",
		"evaluation": "passed: 2 passed in profile strict, in 3.0 to 4.5 s", "together": "passed: 2 passed in profile strict, in 3.0 to 4.5 s", "gpu": "passed: 4 x NVIDIA B200, torch 2.9",
		"artifacts": "passed: 4 of 4 result.json are complete, and the agent can read them", "restart": "passed: gpu1: back after N s, registered after N s",
		"build": "by hand: an agent's token cannot start one",
	}
	if diff := gocmp.Diff(want, got); diff != "" || !r.Accepted {
		t.Errorf("accepted %t: %s", r.Accepted, diff)
	}
}

// TestNotStrict tests that an image that needs root is accepted, and that the report says
// what that means.
func TestNotStrict(t *testing.T) {
	t.Parallel()
	w := well()
	w.alone[1].Profile, w.alone[1].NotStrict = "compatible", "no python3"
	_, all := w.walk(t)
	if got, want := all["evaluation"].Saw, "2 passed in profile compatible and strict, in 3.0 to 4.5 s; print pipelines with --profile compatible, because the image fails in the strict one in gpu1: no python3"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestNotAccepted breaks one thing at a time. What depends on it may fail too; everything
// else passes.
func TestNotAccepted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(*world)
		want  map[string]string // all that do not pass
		yet   bool              // accepted anyway
	}{
		{"an image that was loaded", func(w *world) { w.pullErr = image.ErrNoRegistry }, map[string]string{"image": "by hand: it was made or loaded here: it does not come from a registry"}, true},
		{"a registry that is gone", func(w *world) { w.pullErr = fmt.Errorf("pull: %w", docker.ErrRefused) }, map[string]string{"image": "failed: pull: " + docker.ErrRefused.Error()}, false},
		{"no doctor", func(w *world) { w.doctorErr = errors.New("no systemd") }, map[string]string{
			"doctor": "failed: no systemd", "agents": "not tried: cannot run kbnode doctor", "limits": "not tried: cannot run kbnode doctor",
		}, false},
		{"a slot's limits", func(w *world) {
			w.checks[4] = doctor.Result{ID: "slot-limits", Status: doctor.Fail, Findings: []doctor.Finding{{Status: doctor.Fail, Detail: "memory.max is max"}}}
		}, map[string]string{"doctor": "failed: slot-limits: memory.max is max", "limits": "failed: slot-limits: memory.max is max"}, false},
		{"a slot with a job", func(w *world) {
			w.checks[3].Findings = append(w.checks[3].Findings, doctor.Finding{Status: doctor.Skip, Slots: []int{1}, Detail: "it is busy"})
			w.slots = append(w.slots, selftest.SlotReport{Slot: "gpu1", Index: 1, Skipped: "it is busy"})
			w.alone[1].Passed, w.alone[1].Uploadable, w.alone[1].Missed = false, false, "job x runs in it"
		}, map[string]string{
			"limits": "not tried: slots 1: it is busy", "isolation": "not tried: gpu1: it is busy", "evaluation": "not tried: gpu1: job x runs in it",
			"gpu": "not tried: not every evaluation passed",
		}, false},
		{"a way out", func(w *world) {
			for range 5 {
				w.slots[1].Checks = append(w.slots[1].Checks, selftest.Check{Tried: "open /dev/nvidia7", Saw: "ok"})
			}
		}, map[string]string{"isolation": "failed: gpu0, open /dev/nvidia7: saw ok; gpu0, open /dev/nvidia7: saw ok; gpu0, open /dev/nvidia7: saw ok; and 2 more"}, false},
		{"slots that disturb each other", func(w *world) {
			w.all[0].Passed, w.all[0].Uploadable, w.all[0].Reason = false, false, "it ran out of the slot's memory"
		}, map[string]string{
			"together": "failed: gpu0: it ran out of the slot's memory", "gpu": "not tried: not every evaluation passed", "artifacts": "failed: no result to upload in gpu0",
		}, false},
		{"no torch", func(w *world) {
			for _, all := range [][]image.Evaluation{w.alone, w.all} {
				for i := range all {
					all[i].Torch = ""
				}
			}
		}, map[string]string{"gpu": "by hand: the image has no torch that uses GPUs"}, true},
		{"torch that sees no GPU in one slot", func(w *world) { w.all[1].GPU = "" }, map[string]string{"gpu": "failed: torch saw no GPU in gpu1"}, false},
		{"two kinds of GPU", func(w *world) { w.alone[1].GPU = "NVIDIA L4" }, map[string]string{"gpu": "failed: the slots differ: 1 x NVIDIA L4, torch 2.9; 3 x NVIDIA B200, torch 2.9"}, false},
		{"no evaluation", func(w *world) { w.alone, w.all, w.evalErr = nil, nil, docker.ErrNotFound }, map[string]string{
			"evaluation": "failed: " + docker.ErrNotFound.Error(), "together": "failed: " + docker.ErrNotFound.Error(),
			"gpu": "not tried: nothing was evaluated", "artifacts": "not tried: nothing was evaluated",
		}, false},
		{"no idle slot", func(w *world) { w.busy = true }, map[string]string{"restart": "not tried: no slot is idle"}, false},
		{"an agent that stays away", func(w *world) { w.back, w.limits[0] = -1, 60*time.Millisecond }, map[string]string{"restart": "failed: the agent of gpu1 is not back after 60ms"}, false},
		{"an agent that does not register", func(w *world) { w.ready, w.limits[1] = -1, 60*time.Millisecond }, map[string]string{"restart": "failed: the agent of gpu1 was back after N s, but has not registered"}, false},
		{"an agent that cannot be killed", func(w *world) { w.killErr = errors.New("kill: gone") }, map[string]string{"restart": "failed: kill: gone"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := well()
			tt.spoil(w)
			r, all := w.walk(t)
			tt.want["build"] = "by hand: an agent's token cannot start one"
			got := map[string]string{}
			for id, i := range all {
				if i.Verdict != Passed {
					got[id] = string(i.Verdict) + ": " + i.Saw
				}
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" || r.Accepted != tt.yet {
				t.Errorf("accepted %t: %s", r.Accepted, diff)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	if r, err := Run(ctx, well(), func(string) { cancel() }); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

func TestDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/install.md")
	must.Do(t, err)
	for n, i := range items {
		if row := fmt.Sprintf("| %d | `%s` | %s |", n+1, i.id, i.about); !strings.Contains(string(text), row) {
			t.Errorf("docs/install.md lacks the row %s", row)
		}
	}
}
