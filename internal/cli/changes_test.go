package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
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
	must.Equal(t, want, got)
	must.Equal(t, 12, len(foldSlots(in))-len(want))
	must.Equal(t, "buildkite-gpu11.slice", in[35].Subject) // what was given stays
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
	must.Equal(t, want, b.String())
}

// TestPlanOfAnotherShape plans pairs of GPUs on a node of single GPUs while a job runs.
func TestPlanOfAnotherShape(t *testing.T) {
	t.Parallel()
	n := newNode(t, 8)
	must.Do(t, n.install(t.Context(), "http://127.0.0.1:1/v3", "the-token"))
	must.Do(t, n.sd.RunJob(1, "0192"))
	p, _, changes, err := n.compare(t.Context(), configFlags{cfg: config.Config{Queue: "b200", Node: "bench", GPUsPerSlot: 2, Agent: config.Agent{Endpoint: "http://127.0.0.1:1/v3"}}})
	must.Do(t, err)
	var out bytes.Buffer
	printPlan(&out, planOutput{Plan: p, Changes: changes})
	_, rest, _ := strings.Cut(out.String(), "system ")
	_, rest, _ = strings.Cut(rest, "\n")
	head, _, _ := strings.Cut(rest, " changes:")
	want := `
Slots to be removed: gpu1, gpu3, gpu5, gpu7
Later: gpu0, gpu1, waits for job 0192 of slot gpu1

`
	must.Equal(t, want, strings.TrimRight(head, "0123456789"))
}

// taken is when a slot took its job.
var taken = systemdtest.Started.Add(time.Hour)

func TestStatusTable(t *testing.T) {
	t.Parallel()
	slots := systemdtest.Slots(5)
	slots[3].Parked = "its GPU is away"
	slots[4].Drains = []plan.Drain{{Slot: 4, By: plan.ByOperator, Reason: "new fan", Since: taken.Add(time.Minute)}}
	state := &reconcile.State{Warnings: []string{"the kernel made no partition"}, Slots: []slot.State{
		{Index: 0, Agent: systemdtest.Agent("active", "running")},
		{Index: 1, Agent: systemdtest.Agent("active", "running"), Job: &slot.Job{ID: "0190-aa", Pipeline: "kernelbot", Build: "7", Since: taken}},
		{Index: 2, Agent: systemdtest.Agent("failed", "failed"), Job: nil},
		{Index: 3, Agent: systemdtest.Agent("inactive", "dead")},
		{Index: 4, Agent: systemdtest.Agent("inactive", "dead")},
	}}
	changes := []reconcile.Change{
		{Kind: reconcile.Start, Subject: "buildkite-agent-gpu2.service", Slot: 2},
		{Kind: reconcile.Set, Subject: "buildkite-gpu2.slice", Slot: 2},
	}
	var b strings.Builder
	printStatus(&b, node.StatusOf(&plan.Plan{Slots: slots}, state, changes), taken.Add(90*time.Second))
	golden(t, "status.txt", b.String())
}

// TestStatusFits has a terminal of 80 columns and 24 lines show each slot, and why several take no jobs, above the next prompt.
func TestStatusFits(t *testing.T) {
	t.Parallel()
	slots := systemdtest.Slots(8)
	drain := func(slot int, by, reason string) {
		slots[slot].Drains = []plan.Drain{{Slot: slot, By: by, Reason: reason, Since: taken}}
	}
	drain(1, "gpu.lost", "the GPU at 0000:1b:00.0 has fallen off the bus (Xid 79); sudo kbnode drain --all --reboot")
	drain(3, "gpu.repeats", "the GPU at 0000:43:00.0 had 3 faults in 7 days (Xid 48, gpu.ecc, Xid 48): it stays out until an operator returns it; sudo kbnode resume gpu3")
	drain(4, plan.ByOperator, "new fan")
	drain(5, plan.ByOperator, "new fan")
	slots[6].Parked = "GPU GPU-6c1d4f0a-93b2-4e57-8a1c-0d5e7f2a3b03 at 0000:24:00.0 is missing"
	state := &reconcile.State{Warnings: []string{"gpu2, gpu.thermal: the GPU at 0000:3b:00.0 is slowed down by heat (92 °C); check fans, filters and the room; do not trust timings from this time"}}
	for k := range slots {
		agent := systemdtest.Agent("inactive", "dead")
		if slices.Contains([]int{0, 2, 7}, k) {
			agent = systemdtest.Agent("active", "running")
		}
		state.Slots = append(state.Slots, slot.State{Index: k, Agent: agent})
	}
	state.Slots[0].Job = &slot.Job{ID: "0190-aa", Pipeline: "a-pipeline-with-a-name-that-is-much-too-long", Build: "1207", Since: taken}
	p := newPerson(t, 80)
	st := node.StatusOf(&plan.Plan{Node: "vendor-b200-1", Slots: slots}, state, nil)
	printStatus(p.tty, st, taken.Add(90*time.Second))
	lines := strings.Split(strings.TrimSpace(pretty.StripEscape(p.saw())), "\n")
	if len(lines) > 23 || !strings.HasPrefix(lines[0], "SLOT ") || !strings.HasPrefix(lines[8], "gpu7 ") {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	must.Contain(t, strings.Join(lines, "\n"), "\ngpu4 gpu5 drained: by operator: new fan", "\ngpu6 parked: GPU GPU-6c1d")
	must.Equal(t, "vendor-b200-1: 8 slots: 2 idle, 1 busy, 4 drained, 1 parked", strings.TrimSpace(lines[len(lines)-1]))
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Minute: "0s", 0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h00m", 130 * time.Minute: "2h10m", 24 * time.Hour: "1d", 130 * time.Hour: "5d",
	} {
		if got := term.Ago(taken, taken.Add(d)); got != want {
			t.Errorf("%s ago is %q, want %q", d, got, want)
		}
	}
	must.Equal(t, "-", term.Ago(time.Time{}, taken))
}

var shown = []reconcile.Change{
	{Kind: reconcile.AddUser, Subject: "kbnode-gpu0"},
	{Kind: reconcile.AddUser, Subject: "kbnode-gpu1"},
	{Kind: reconcile.Create, Subject: "/etc/kbnode/"},
	{Kind: reconcile.Update, Subject: "/etc/kbnode/config.yaml"},
	{Kind: reconcile.Reload, Subject: "systemd"},
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		80: "  adding users: 2|  writing files: 2|  reloading systemd: 1|",
		12: "  adding us|  writing f|  reloading|",
		1:  "|||",
	} {
		var b strings.Builder
		p := changeProgress{Progress: &term.Progress{S: term.Streams{Err: &b}, Width: width}}
		for _, c := range shown {
			p.show(c)
		}
		p.end()
		p.end() // a second call does nothing
		got := ""
		for line := range strings.Lines(b.String()) {
			parts := strings.Split(strings.TrimSuffix(line, "\n"), "\r\x1b[K")
			for _, part := range parts {
				if len(part) >= width {
					t.Errorf("width %d: %q would wrap", width, part)
				}
			}
			got += parts[len(parts)-1] + "|"
		}
		if got != want {
			t.Errorf("width %d leaves %q, want %q", width, got, want)
		}
		if width == 80 && !strings.Contains(b.String(), "  writing files: 2, /etc/kbnode/config.yaml") {
			t.Errorf("what is under way is not shown: %q", b.String())
		}
	}
}

// TestEveryChangeIsNamed checks that no kind of change shows a line without words.
func TestEveryChangeIsNamed(t *testing.T) {
	t.Parallel()
	for _, k := range []reconcile.Kind{
		reconcile.Create, reconcile.Update, reconcile.Adopt, reconcile.Chmod, reconcile.Delete,
		reconcile.AddUser, reconcile.DelUser, reconcile.Reload, reconcile.Start, reconcile.Stop, reconcile.Restart,
		reconcile.Drain, reconcile.Set, reconcile.Partition, reconcile.Enable, reconcile.Disable,
	} {
		if doing[k] == "" {
			t.Errorf("no words for %s", k)
		}
	}
}

// TestSubmitProgress counts the seconds of a build on one line, and asks after Ctrl-C.
func TestSubmitProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for width, want := range map[int]string{
			80: "|  waiting, 0 s|  waiting, 1 s|  build 7: http://b/7\n  run ID: run-1\n|  build 7: running on n-gpu3, 0 s|  502; retrying in 1s\n|  build 7: running on n-gpu3, 0 s|",
			0:  "  waiting\n  build 7: http://b/7\n  run ID: run-1\n  502; retrying in 1s\n  build 7: passed\n",
		} {
			var b strings.Builder
			p := operator.NewSubmitProgress(&term.Progress{S: term.Streams{Err: &b}, Width: width})
			p.Show(0, submit.Status{State: "creating"})
			p.Show(0, submit.Status{State: "waiting", Since: time.Now()})
			time.Sleep(1500 * time.Millisecond)
			p.Show(0, submit.Status{State: "running", RunID: "run-1", Build: 7, Agent: "n-gpu3", URL: "http://b/7", Since: time.Now()})
			p.Trouble("502", 0)
			if width == 0 {
				p.Show(0, submit.Status{State: "passed", Build: 7})
			}
			p.Stop()
			p.Stop()
			_, got, _ := strings.Cut("\n"+b.String(), "\n")
			if width > 0 {
				_, got, _ = strings.Cut(got, "creating, ")
				_, got, _ = strings.Cut(got, " s")
			}
			must.Equal(t, want, strings.ReplaceAll(got, term.ClearLine, "|"))
		}
	})
}

// TestSubmitWaits says each minute that a build still waits where no line counts the seconds.
func TestSubmitWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		p := operator.NewSubmitProgress(&term.Progress{S: term.Streams{Err: &b}})
		p.Show(0, submit.Status{State: "waiting", Build: 7, URL: "http://b/7", Since: time.Now()})
		time.Sleep(150 * time.Second)
		p.Show(0, submit.Status{State: "running", Build: 7, Agent: "n-gpu3", Since: time.Now()})
		time.Sleep(61 * time.Second)
		p.Stop()
		must.Equal(t, "  build 7: http://b/7\n  build 7: waiting, 60 s\n  build 7: waiting, 120 s\n"+
			"  build 7: running on n-gpu3\n  build 7: running on n-gpu3, 60 s\n", b.String())
	})
}
