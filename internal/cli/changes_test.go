package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

func TestFoldSlots(t *testing.T) {
	t.Parallel()
	var in []reconcile.Change
	for k := range 12 {
		in = append(in,
			reconcile.Change{Kind: reconcile.AddUser, Subject: fmt.Sprintf("kbnode-gpu%d", k), Slot: k},
			reconcile.Change{Kind: reconcile.Create, Subject: fmt.Sprintf("/etc/buildkite-agent/agent-%d/environment", k), Slot: k, Diff: fmt.Sprint("+ its own, not shown ", k)},
			reconcile.Change{Kind: reconcile.Update, Subject: fmt.Sprintf("buildkite-gpu%d.slice", k), Slot: k, Diff: fmt.Sprintf("+ AllowedCPUs=%d\n", k)})
	}
	in = append(in, reconcile.Change{Kind: reconcile.Reload, Subject: "systemd", Slot: -1})
	for _, k := range []int{11, 2, 1} {
		in = append(in, reconcile.Change{Kind: reconcile.Restart, Subject: fmt.Sprintf("buildkite-agent-gpu%d.service", k), Slot: k, Why: "its unit file changed"})
	}
	in = append(in,
		reconcile.Change{Kind: reconcile.Restart, Subject: "buildkite-agent-gpu3.service", Slot: 3, Why: "its unit file changed", Deferred: "waits for a job"},
		// The number in the name is not a slot's.
		reconcile.Change{Kind: reconcile.Create, Subject: "/var/lib/kbnode/gpu1", Slot: -1},
		reconcile.Change{Kind: reconcile.Create, Subject: "/var/lib/kbnode/gpu2", Slot: -1})

	var got []string
	for _, c := range foldSlots(in) {
		if c.Kind != reconcile.Update { // updates differ and are not merged
			got = append(got, fmt.Sprint(c.Kind, " ", c.Subject, suffix("; ", c.Deferred)))
		}
	}
	want := []string{
		"adduser kbnode-gpu{0..11}",
		"create /etc/buildkite-agent/agent-{0..11}/environment",
		"reload systemd",
		"restart buildkite-agent-gpu{1,2,11}.service",
		"restart buildkite-agent-gpu3.service; waits for a job",
		"create /var/lib/kbnode/gpu1",
		"create /var/lib/kbnode/gpu2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(foldSlots(in)) - len(want); n != 12 {
		t.Errorf("%d updates of what differs, want 12", n)
	}
	if diff := cmp.Diff("buildkite-gpu11.slice", in[35].Subject); diff != "" {
		t.Errorf("what was given was changed: %s", diff)
	}
}

func TestPrintLater(t *testing.T) {
	t.Parallel()
	const job = "waits for job 1 of slot gpu2"
	var b strings.Builder
	printLater(&b, []reconcile.Change{
		{Kind: reconcile.Update, Subject: "/a", Slot: 2, Deferred: job},
		{Kind: reconcile.Delete, Subject: "/b", Slot: -1, Deferred: "waits for all"},
		{Kind: reconcile.Update, Subject: "/c", Slot: 2, Deferred: job},
		{Kind: reconcile.Delete, Subject: "/d", Slot: -1, Deferred: "waits for all"},
		{Kind: reconcile.Update, Subject: "/e", Slot: 3, Deferred: job},
	})
	want := "  later: 2 changes of gpu2, " + job + "\n  later: delete /b, waits for all\n  later: delete /d, waits for all\n  later: update /e, " + job + "\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// TestPlanOfAnotherShape plans pairs of GPUs on a node of single GPUs while a job runs.
func TestPlanOfAnotherShape(t *testing.T) {
	t.Parallel()
	n := newNode(t, 8)
	defer n.remove(t)
	if err := n.install(t.Context(), "http://127.0.0.1:1/v3", "the-token"); err != nil {
		t.Fatal(err)
	}
	if err := n.sd.RunJob(1, "0192"); err != nil {
		t.Fatal(err)
	}
	p, _, changes, err := n.think(t.Context(), configFlags{cfg: config.Config{Queue: "b200", Node: "bench", GPUsPerSlot: 2, Agent: config.Agent{Endpoint: "http://127.0.0.1:1/v3"}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	printPlan(&out, p, changes)
	_, rest, _ := strings.Cut(out.String(), "system ")
	_, rest, _ = strings.Cut(rest, "\n")
	head, _, _ := strings.Cut(rest, " changes:")
	want := `
Slots to be removed: gpu1, gpu3, gpu5, gpu7
Later: gpu0, gpu1, waits for job 0192 of slot gpu1

`
	if diff := cmp.Diff(want, strings.TrimRight(head, "0123456789")); diff != "" {
		t.Error(diff)
	}
}
