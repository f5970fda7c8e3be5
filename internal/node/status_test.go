package node

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

var (
	started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	taken   = started.Add(time.Hour)

	drainedAt = taken.Add(time.Minute)
)

func agentAt(active, sub string) slot.Unit {
	return slot.Unit{Load: "loaded", Active: active, Sub: sub, Since: started}
}

// wantedSlots are the slots of a plan with one GPU each.
func wantedSlots(n int) []plan.Slot {
	var slots []plan.Slot
	for k := range n {
		slots = append(slots, plan.Slot{
			Index: k, Name: plan.SlotName(k), Queue: "b200", CPUs: "4-7", MemoryNodes: "0", MemoryBytes: 64 << 30,
			GPUs: []plan.SlotGPU{{UUID: "GPU-1", PCI: "0000:1b:00.0", Vendor: "nvidia", Model: "NVIDIA B200"}},
		})
	}
	return slots
}

func TestAgentWords(t *testing.T) {
	t.Parallel()
	job := &slot.Job{ID: "0190", Since: taken}
	for _, tt := range []struct {
		name   string
		parked string
		state  slot.State
		want   string
		since  time.Time
	}{
		{"waits for a job", "", slot.State{Agent: agentAt("active", "running")}, "idle", started},
		{"runs a job", "", slot.State{Agent: agentAt("active", "running"), Job: job}, "busy", taken},
		{"finishes its job and stops", "", slot.State{Agent: agentAt("deactivating", "stop-sigterm"), Job: job}, "draining", taken},
		{"stops without a job", "", slot.State{Agent: agentAt("deactivating", "stop-sigterm")}, "stopping", started},
		{"comes up", "", slot.State{Agent: agentAt("activating", "start")}, "starting", started},
		{"gave up", "", slot.State{Agent: agentAt("failed", "failed")}, "failed", started},
		{"ends again and again", "", slot.State{Agent: agentAt("activating", "auto-restart")}, "failed", started},
		{"stopped", "", slot.State{Agent: agentAt("inactive", "dead")}, "down", started},
		{"systemd knows nothing of it", "", slot.State{}, "down", time.Time{}},
		{"its GPU is away", "its GPU is away", slot.State{Agent: agentAt("inactive", "dead")}, "parked", started},
		{"its GPU went away under a job", "its GPU is away", slot.State{Agent: agentAt("active", "running"), Job: job}, "busy", taken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			slots := wantedSlots(2)
			slots[1].Parked = tt.parked
			tt.state.Index = 1
			st := StatusOf(&plan.Plan{Node: "n", Slots: slots}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			got := st.Slots[1]
			if got.Agent != tt.want || !got.Since.Equal(tt.since) || got.Job != tt.state.Job {
				t.Errorf("agent %s since %s with job %v; want %s since %s", got.Agent, got.Since, got.Job, tt.want, tt.since)
			}
			if disagrees := tt.parked != ""; st.Disagrees() != disagrees {
				t.Errorf("disagrees: %t, want %t", st.Disagrees(), disagrees)
			}
		})
	}
}

func TestStatusOfADrain(t *testing.T) {
	t.Parallel()
	job := &slot.Job{ID: "0190", Since: taken}
	operator := plan.Drain{By: plan.ByOperator, Reason: "new fan", Since: drainedAt}
	health := plan.Drain{By: "gpu.lost", Reason: "it fell off the bus", Since: taken}
	for _, tt := range []struct {
		name   string
		drains []plan.Drain
		state  slot.State
		want   string
		since  time.Time
		wrong  bool
	}{
		{"finishes its job", []plan.Drain{operator}, slot.State{Agent: agentAt("deactivating", "stop-sigterm"), Job: job}, "draining", taken, false},
		{"stops", []plan.Drain{operator}, slot.State{Agent: agentAt("deactivating", "stop-sigterm")}, "stopping", started, false},
		{"done", []plan.Drain{operator}, slot.State{Agent: agentAt("inactive", "dead")}, "drained", drainedAt, false},
		{"by its health", []plan.Drain{health}, slot.State{Agent: agentAt("inactive", "dead")}, "drained", taken, true},
		{"by both", []plan.Drain{operator, health}, slot.State{Agent: agentAt("inactive", "dead")}, "drained", drainedAt, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			slots := wantedSlots(1)
			slots[0].Drains = tt.drains
			st := StatusOf(&plan.Plan{Node: "n", Slots: slots}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			if got := st.Slots[0]; got.Agent != tt.want || !got.Since.Equal(tt.since) || st.Disagrees() != tt.wrong {
				t.Errorf("%s since %s, want %s since %s; disagrees: %t", got.Agent, got.Since, tt.want, tt.since, st.Disagrees())
			}
		})
	}
}

func TestStatusOfWhatAJobLeft(t *testing.T) {
	t.Parallel()
	job := &slot.Job{ID: "0190", Since: taken}
	parked := []slot.Parked{{Reason: "its GPU is used by process 7 (x), which does not belong to a job; stop it", Since: taken}}
	for _, tt := range []struct {
		name  string
		state slot.State
		want  string
		since time.Time
	}{
		{"its agent waits to start", slot.State{Agent: agentAt("active", "running")}, "parked", taken},
		{"its agent starts again", slot.State{Agent: agentAt("activating", "auto-restart")}, "parked", taken},
		{"its job is about to end", slot.State{Agent: agentAt("active", "running"), Job: job}, "draining", taken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.state.Parked = parked
			st := StatusOf(&plan.Plan{Node: "n", Slots: wantedSlots(2)}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			if got := st.Slots[0]; got.Agent != tt.want || !got.Since.Equal(tt.since) || !st.Disagrees() {
				t.Errorf("%s since %s, want %s since %s; disagrees: %t", got.Agent, got.Since, tt.want, tt.since, st.Disagrees())
			}
			if diff := cmp.Diff([]string{parked[0].Reason}, st.Slots[0].Problems); diff != "" || len(st.Slots[1].Problems) > 0 {
				t.Errorf("problems of the neighbour: %v; %s", st.Slots[1].Problems, diff)
			}
		})
	}
}

func TestStatusProblems(t *testing.T) {
	t.Parallel()
	changes := []reconcile.Change{
		{Kind: reconcile.Set, Subject: "buildkite-gpu1.slice", Slot: 1, Why: "MemoryMax is 1"},
		{Kind: reconcile.Restart, Subject: "buildkite-agent-gpu1.service", Slot: 1, Deferred: "waits for job 7 of slot gpu1"},
		{Kind: reconcile.Update, Subject: "/etc/buildkite-agent/gitconfig", Slot: -1},
	}
	st := StatusOf(&plan.Plan{Node: "n", Slots: wantedSlots(2)}, &reconcile.State{Warnings: []string{"the kernel made no partition"}}, changes)
	if diff := cmp.Diff([]string{}, st.Slots[0].Problems); diff != "" {
		t.Error(diff)
	}
	want := []string{"set buildkite-gpu1.slice (MemoryMax is 1)", "restart buildkite-agent-gpu1.service, waits for job 7 of slot gpu1"}
	if diff := cmp.Diff(want, st.Slots[1].Problems); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"the kernel made no partition", "update /etc/buildkite-agent/gitconfig"}, st.Warnings); diff != "" {
		t.Error(diff)
	}
	if !st.Disagrees() {
		t.Error("changes are pending, and the status says that all is as planned")
	}
}

func TestStatusJSONHasLists(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(StatusOf(&plan.Plan{}, &reconcile.State{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"node":"","slots":[],"health":[],"warnings":[],"changes":[]}`; string(text) != want {
		t.Errorf("empty status is %s, want %s", text, want)
	}
}

func TestStatusShowsHealth(t *testing.T) {
	t.Parallel()
	verdicts := []health.Verdict{
		{Check: "gpu.throttle", Slots: []int{1}, Level: health.Degraded, Reason: "it is slowed down", Fix: "look at its power"},
		{Check: "gpu.lost", Slots: []int{0}, Level: health.Fatal, Effect: health.Park, Reason: "it is lost", Fix: "reboot"},
		{Check: "node.clock", Level: health.Info, Reason: "x", Fix: "y"},
	}
	st := StatusOf(&plan.Plan{Slots: wantedSlots(2)}, &reconcile.State{}, nil).withHealth(verdicts)
	if diff := cmp.Diff([]string{"gpu1, gpu.throttle: it is slowed down; look at its power"}, st.Warnings); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(verdicts, st.Health); diff != "" {
		t.Error(diff)
	}
}

// TestAgentProblem checks how status explains a crash loop: the last end, the count, and the
// agent's own words.
func TestAgentProblem(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	says := func(lines []string, err error) func(context.Context, string, int) ([]string, error) {
		return func(context.Context, string, int) ([]string, error) { return lines, err }
	}
	words := says([]string{"starting", "fatal: invalid token", "bye"}, nil)
	loop := slot.Unit{Active: "activating", Sub: "auto-restart", Result: "exit-code", ExitStatus: 1, Restarts: 12}
	for _, row := range []struct {
		name    string
		agent   slot.Unit
		slot    plan.Slot
		journal func(context.Context, string, int) ([]string, error)
		want    []string // nil means no problem
	}{
		{"a loop", loop, plan.Slot{}, words, []string{"keeps failing", "exit-code, exit status 1", "12 times", "fatal: invalid token", "journalctl -u buildkite-agent-gpu0"}},
		{"no journal", loop, plan.Slot{}, says(nil, errors.New("no journalctl")), []string{"exit status 1", "12 times"}},
		{"an empty journal", loop, plan.Slot{}, says(nil, nil), []string{"its last message: nothing"}},
		{"not registered", slot.Unit{Active: "active", Result: "success", Since: now.Add(-time.Hour)}, plan.Slot{}, words, []string{"has not registered", "invalid token"}},
		{"just started", slot.Unit{Active: "active", Since: now, Restarts: 3}, plan.Slot{}, words, nil},
		{"drained", loop, plan.Slot{Drains: []plan.Drain{{By: plan.ByOperator}}}, words, nil},
	} {
		got := agentProblem(t.Context(), row.slot, slot.State{Agent: row.agent}, now, row.journal)
		if len(row.want) == 0 && got != "" {
			t.Errorf("%s: %q", row.name, got)
		}
		for _, want := range row.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", row.name, got, want)
			}
		}
	}
}
