package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node"
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
	printStatus(&b, node.StatusOf(&plan.Plan{Slots: slots}, state, changes), taken.Add(90*time.Second))
	golden(t, "status.txt", b.String())
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
