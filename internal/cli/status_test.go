package cli

import (
	"encoding/json"
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
			st := statusOf(&plan.Plan{Node: "n", Slots: slots}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			got := st.Slots[1]
			if got.Agent != tt.want || !got.Since.Equal(tt.since) || got.Job != tt.state.Job {
				t.Errorf("agent %s since %s with job %v; want %s since %s", got.Agent, got.Since, got.Job, tt.want, tt.since)
			}
			if disagrees := tt.parked != ""; st.disagrees() != disagrees {
				t.Errorf("disagrees: %t, want %t", st.disagrees(), disagrees)
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
			st := statusOf(&plan.Plan{Node: "n", Slots: slots}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			if got := st.Slots[0]; got.Agent != tt.want || !got.Since.Equal(tt.since) || st.disagrees() != tt.wrong {
				t.Errorf("%s since %s, want %s since %s; disagrees: %t", got.Agent, got.Since, tt.want, tt.since, st.disagrees())
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
			st := statusOf(&plan.Plan{Node: "n", Slots: wantedSlots(2)}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
			if got := st.Slots[0]; got.Agent != tt.want || !got.Since.Equal(tt.since) || !st.disagrees() {
				t.Errorf("%s since %s, want %s since %s; disagrees: %t", got.Agent, got.Since, tt.want, tt.since, st.disagrees())
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
	st := statusOf(&plan.Plan{Node: "n", Slots: wantedSlots(2)}, &reconcile.State{Warnings: []string{"the kernel made no partition"}}, changes)
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
	if !st.disagrees() {
		t.Error("changes are pending, and the status says that all is as planned")
	}
}

func TestStatusJSONHasLists(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(statusOf(&plan.Plan{}, &reconcile.State{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"node":"","slots":[],"health":[],"warnings":[],"changes":[]}`; string(text) != want {
		t.Errorf("empty status is %s, want %s", text, want)
	}
}

func TestStatusTable(t *testing.T) {
	t.Parallel()
	slots := wantedSlots(5)
	slots[3].Parked = "its GPU is away"
	slots[4].Drains = []plan.Drain{{Slot: 4, By: plan.ByOperator, Reason: "new fan", Since: drainedAt}}
	state := &reconcile.State{Warnings: []string{"the kernel made no partition"}, Slots: []slot.State{
		{Index: 0, Agent: agentAt("active", "running")},
		{Index: 1, Agent: agentAt("active", "running"), Job: &slot.Job{ID: "0190-aa", Pipeline: "kernelbot", Build: "7", Since: taken}},
		{Index: 2, Agent: agentAt("failed", "failed"), Job: nil},
		{Index: 3, Agent: agentAt("inactive", "dead")},
		{Index: 4, Agent: agentAt("inactive", "dead")},
	}}
	changes := []reconcile.Change{
		{Kind: reconcile.Start, Subject: "buildkite-agent-gpu2.service", Slot: 2},
		{Kind: reconcile.Set, Subject: "buildkite-gpu2.slice", Slot: 2},
	}
	var b strings.Builder
	printStatus(&b, statusOf(&plan.Plan{Slots: slots}, state, changes), taken.Add(90*time.Second))
	golden(t, "status.txt", b.String())
}

func TestStatusShowsHealth(t *testing.T) {
	t.Parallel()
	verdicts := []health.Verdict{
		{Check: "gpu.throttle", Slots: []int{1}, Level: health.Degraded, Reason: "it is slowed down", Fix: "look at its power"},
		{Check: "gpu.lost", Slots: []int{0}, Level: health.Fatal, Effect: health.Park, Reason: "it is lost", Fix: "reboot"},
		{Check: "node.clock", Level: health.Info, Reason: "x", Fix: "y"},
	}
	st := statusOf(&plan.Plan{Slots: wantedSlots(2)}, &reconcile.State{}, nil).withHealth(verdicts)
	if diff := cmp.Diff([]string{"gpu1, gpu.throttle: it is slowed down; look at its power"}, st.Warnings); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(verdicts, st.Health); diff != "" {
		t.Error(diff)
	}
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Minute: "0s", 0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h00m", 130 * time.Minute: "2h10m", 24 * time.Hour: "1d", 130 * time.Hour: "5d",
	} {
		if got := ago(started, started.Add(d)); got != want {
			t.Errorf("%s ago is %q, want %q", d, got, want)
		}
	}
	if got := ago(time.Time{}, started); got != "-" {
		t.Errorf("no time is %q", got)
	}
}
