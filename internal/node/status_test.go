package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

var (
	started = systemdtest.Started
	taken   = started.Add(time.Hour)

	drainedAt = taken.Add(time.Minute)
)

// TestStatusOfSlots checks since when a slot is as it is, and what is wrong with it. Which word
// says how it is, slot.State decides.
func TestStatusOfSlots(t *testing.T) {
	t.Parallel()
	job := &slot.Job{ID: "0190", Since: taken}
	operator := plan.Drain{By: plan.ByOperator, Reason: "new fan", Since: drainedAt}
	verdict := plan.Drain{By: "gpu.lost", Reason: "it fell off the bus", Since: taken}
	left := []slot.Parked{{Reason: "its GPU is used by process 7", Since: taken}}
	running, stopped := systemdtest.Agent("active", "running"), systemdtest.Agent("inactive", "dead")
	cleared := systemdtest.Agent("activating", "start-pre")
	for _, tt := range []struct {
		name     string
		slot     plan.Slot
		state    slot.State
		want     string
		since    time.Time
		problems []string
	}{
		{"waits for a job", plan.Slot{}, slot.State{Agent: running}, "idle", started, nil},
		{"runs a job", plan.Slot{}, slot.State{Agent: running, Job: job}, "busy", taken, nil},
		{"systemd knows nothing of it", plan.Slot{}, slot.State{}, "down", time.Time{}, nil},
		{"drained", plan.Slot{Drains: []plan.Drain{operator}}, slot.State{Agent: stopped}, "drained", drainedAt, nil},
		{"drained by its health", plan.Slot{Drains: []plan.Drain{verdict}}, slot.State{Agent: stopped}, "drained", taken, []string{verdict.String()}},
		{"drained by both", plan.Slot{Drains: []plan.Drain{operator, verdict}}, slot.State{Agent: stopped}, "drained", drainedAt, []string{verdict.String()}},
		{"its GPU is away", plan.Slot{Parked: "away"}, slot.State{Agent: stopped}, "parked", started, []string{"away"}},
		{"its slot is cleared", plan.Slot{}, slot.State{Agent: cleared}, "starting", started, nil},
		{"a job left something", plan.Slot{}, slot.State{Agent: cleared, Parked: left}, "parked", taken, []string{left[0].Reason}},
		{"its job is about to end", plan.Slot{}, slot.State{Agent: running, Job: &slot.Job{Since: drainedAt}, Parked: left}, "draining", drainedAt, []string{left[0].Reason}},
	} {
		slots := systemdtest.Slots(2)
		slots[1].Drains, slots[1].Parked, tt.state.Index = tt.slot.Drains, tt.slot.Parked, 1
		st := StatusOf(&plan.Plan{Node: "n", Slots: slots}, &reconcile.State{Slots: []slot.State{tt.state}}, nil)
		got := st.Slots[1]
		if got.Agent != tt.want || !got.Since.Equal(tt.since) || got.Job != tt.state.Job || st.Disagrees() != (tt.problems != nil) {
			t.Errorf("%s: %+v, disagrees: %t", tt.name, got, st.Disagrees())
		}
		if !slices.Equal(tt.problems, got.Problems) || len(st.Slots[0].Problems) > 0 {
			t.Errorf("%s: problems %q, of the neighbor %q", tt.name, got.Problems, st.Slots[0].Problems)
		}
	}
}

func TestStatusProblems(t *testing.T) {
	t.Parallel()
	changes := []reconcile.Change{
		{Kind: reconcile.Set, Subject: "buildkite-gpu1.slice", Slot: 1, Why: "MemoryMax is 1"},
		{Kind: reconcile.Restart, Subject: "buildkite-agent-gpu1.service", Slot: 1, Deferred: "waits for job 7 of slot gpu1"},
		{Kind: reconcile.Update, Subject: "/etc/buildkite-agent/hooks/agent-startup", Slot: -1},
	}
	st := StatusOf(&plan.Plan{Node: "n", Slots: systemdtest.Slots(2)}, &reconcile.State{Warnings: []string{"the kernel made no partition"}}, changes)
	must.Equal(t, []string{}, st.Slots[0].Problems)
	want := []string{"set buildkite-gpu1.slice (MemoryMax is 1)", "restart buildkite-agent-gpu1.service, waits for job 7 of slot gpu1"}
	must.Equal(t, want, st.Slots[1].Problems)
	must.Equal(t, []string{"the kernel made no partition", "update /etc/buildkite-agent/hooks/agent-startup"}, st.Warnings)
	if !st.Disagrees() {
		t.Error("changes are pending, and the status says that all is as planned")
	}
}

func TestStatusJSONHasLists(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(StatusOf(&plan.Plan{}, &reconcile.State{}, nil))
	must.Do(t, err)
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
	st := StatusOf(&plan.Plan{Slots: systemdtest.Slots(2)}, &reconcile.State{}, nil).withHealth(verdicts)
	must.Equal(t, []string{"gpu1, gpu.throttle: it is slowed down; look at its power"}, st.Warnings)
	must.Equal(t, verdicts, st.Health)
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
		{"its slot is not cleared", slot.Unit{Active: "activating", Sub: "start-pre", Result: "success", Since: now.Add(-time.Hour)}, plan.Slot{}, words, []string{"waits for the slot to be cleared", "invalid token"}},
		{"its slot is being cleared", slot.Unit{Active: "activating", Sub: "start-pre", Result: "success", Since: now.Add(-time.Minute)}, plan.Slot{}, words, nil},
		{"just started", slot.Unit{Active: "active", Since: now, Restarts: 3}, plan.Slot{}, words, nil},
		{"drained", loop, plan.Slot{Drains: []plan.Drain{{By: plan.ByOperator}}}, words, nil},
	} {
		got := agentProblem(t.Context(), row.slot, slot.State{Agent: row.agent}, now, row.journal)
		if len(row.want) == 0 && got != "" {
			t.Errorf("%s: %q", row.name, got)
		}
		must.Contain(t, got, row.want...)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := systemdtest.Slots(4)
	for _, tt := range []struct {
		all  bool
		args []string
		want []string
		says string
	}{
		{false, []string{"gpu3", "0"}, []string{"gpu3", "gpu0"}, ""},
		{true, nil, []string{"gpu0", "gpu1", "gpu2", "gpu3"}, ""},
		{true, []string{"gpu1"}, nil, "leave out gpu1"},
		{false, nil, nil, "write slots such as gpu3, or --all"},
		{false, []string{"gpu4"}, nil, "it has gpu0, gpu1, gpu2, gpu3"},
		{false, []string{"gpu"}, nil, `no slot "gpu"`},
		{false, []string{"-1"}, nil, `no slot "-1"`},
	} {
		slots, err := Selection{tt.all, tt.args}.In(all)
		var got []string
		for _, s := range slots {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: %s", tt.args, diff)
		}
		if _, input := errors.AsType[*config.InputError](err); tt.says != "" && (!input || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.says)
		}
	}
}

// TestSlotlessDrains checks that drains without a slot can be resumed, by name and with all.
func TestSlotlessDrains(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: systemdtest.Slots(2)}
	got := slotless(p, []plan.Drain{{Slot: 1, By: plan.ByOperator}, {Slot: 5, By: plan.ByOperator}, {Slot: 6, By: "gpu.ecc"}})
	if len(got) != 1 || got[0].Name != "gpu5" || got[0].Index != 5 || got[0].User != "" {
		t.Errorf("resume knows %+v", got) // and not what health has drained
	}
}

// TestMetricsFault says what keeps metrics from node_exporter, but not of a daemon that does not run.
func TestMetricsFault(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	n := &Node{Root: t.TempDir()}
	fault := func(dir, active string, since time.Time, want ...string) {
		t.Helper()
		n.Config.Metrics.Textfile = dir
		state := &reconcile.State{Units: map[string]slot.Unit{plan.NodeService: {Active: active, Since: since}}}
		must.Equal(t, want, n.metricsFault(state, now))
	}
	fault("", "active", now)
	fault("/srv/metrics", "inactive", now)
	fault("/srv/metrics", "active", now, "metrics.textfile: no metrics for node_exporter in /srv/metrics: there is no such directory; write that of node_exporter's --collector.textfile.directory")
	must.Write(t, n.Root, "srv/metrics/other.prom", "")
	fault("/srv/metrics", "active", now)
	fault("/srv/metrics", "active", now.Add(-time.Hour), "metrics.textfile: /srv/metrics/kbnode.prom is missing; see sudo journalctl -u kbnode")
}
