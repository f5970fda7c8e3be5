package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/must"
)

// report returns what a look finds of agents of a node, as at a time.
func report(at time.Time, slots int, agents ...string) buildkite.QueueReport {
	var all []buildkite.Agent
	for _, name := range agents {
		all = append(all, buildkite.Agent{Name: "n-" + name, Tags: []string{"queue=q", "node=n", fmt.Sprintf("slots=%d", slots), "kbnode=1"}})
	}
	r := buildkite.QueueReport{Time: at, Queues: buildkite.Queues(all, nil, at)}
	if len(agents) == 0 {
		r.Queues = []buildkite.Queue{buildkite.EmptyQueue("q")}
	}
	return r
}

// TestUpdate looks again and again at a node that loses agents, gets others, and is gone.
func TestUpdate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "nodes.json")
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	missing := func(slot string, hours int) buildkite.QueueSlot {
		s := buildkite.QueueSlot{Slot: slot, State: buildkite.Missing}
		if slot != "" {
			s.Seen = begin.Add(time.Duration(hours) * time.Hour)
		}
		return s
	}
	goneSlot := func(slot string, hours int) buildkite.QueueSlot {
		return buildkite.QueueSlot{Slot: slot, State: buildkite.Gone, Seen: begin.Add(time.Duration(hours) * time.Hour)}
	}
	for _, step := range []struct {
		hour   int
		slots  int
		agents []string
		out    []buildkite.QueueSlot
		isGone bool
	}{
		{hour: 0, slots: 3, agents: []string{"gpu0", "gpu1"}, out: []buildkite.QueueSlot{missing("", 0)}},
		{hour: 1, slots: 3, agents: []string{"gpu0", "gpu1", "gpu10"}},
		{hour: 2, slots: 3, agents: []string{"gpu1"}, out: []buildkite.QueueSlot{missing("gpu0", 1), missing("gpu10", 1)}},
		// Divided again: the name that was seen last is that of the slot without an agent.
		{hour: 3, slots: 2, agents: []string{"gpu0"}, out: []buildkite.QueueSlot{missing("gpu1", 2)}},
		{hour: 4, isGone: true, out: []buildkite.QueueSlot{goneSlot("gpu0", 3), goneSlot("gpu1", 2)}},
		{hour: 5, slots: 2, agents: []string{"gpu0", "gpu1"}},
		{hour: 5 + 7*24, isGone: true, out: []buildkite.QueueSlot{goneSlot("gpu0", 5), goneSlot("gpu1", 5)}},
		{hour: 6 + 7*24},
	} {
		m, err := load(path)
		must.Do(t, err)
		r := report(begin.Add(time.Duration(step.hour)*time.Hour), step.slots, step.agents...)
		m.Update(&r, true)
		must.Do(t, m.Save())
		switch {
		case step.isGone:
			if len(r.Queues) != 1 || len(r.Queues[0].Nodes) != 1 || r.Queues[0].Nodes[0].Seen.IsZero() || r.Queues[0].Nodes[0].Slots != 2 {
				t.Fatalf("hour %d: %+v", step.hour, r.Queues)
			}
			must.Equal(t, step.out, r.Queues[0].Nodes[0].Out)
		case len(step.agents) == 0:
			if len(r.Queues) != 0 {
				t.Errorf("hour %d: %+v", step.hour, r.Queues)
			}
		default:
			must.Equal(t, step.out, r.Queues[0].Nodes[0].Out)
		}
	}
}

// TestOtherQueues looks at one queue: what is known of others stays, and is shown with them only.
func TestOtherQueues(t *testing.T) {
	t.Parallel()
	m, err := load(filepath.Join(t.TempDir(), "nodes.json"))
	must.Do(t, err)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := report(at, 1, "gpu0")
	m.Update(&r, true)
	r = buildkite.QueueReport{Time: at.Add(time.Hour), Queues: []buildkite.Queue{buildkite.EmptyQueue("other")}}
	m.Update(&r, false)
	if len(r.Queues) != 1 || len(r.Queues[0].Nodes) != 0 {
		t.Errorf("%+v", r.Queues)
	}
	r.Queues = nil
	m.Update(&r, true)
	if len(r.Queues) != 1 || r.Queues[0].Name != "q" || len(r.Queues[0].Nodes) != 1 {
		t.Errorf("%+v", r.Queues)
	}
}

// TestMoved looks at a node whose agents are in another queue now: it is gone from the first one, and the reason says where it is.
func TestMoved(t *testing.T) {
	t.Parallel()
	m, err := load(filepath.Join(t.TempDir(), "nodes.json"))
	must.Do(t, err)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := report(at, 1, "gpu0")
	m.Update(&r, true)
	r = buildkite.QueueReport{Time: at.Add(time.Hour), Queues: []buildkite.Queue{buildkite.EmptyQueue("q")}}
	r.NodeQueues = map[string][]string{"n": {"other"}}
	m.Update(&r, true)
	want := []buildkite.QueueSlot{{Slot: "gpu0", State: buildkite.Gone, Reason: "the node has agents in queue other", Seen: at}}
	must.Equal(t, want, r.Queues[0].Nodes[0].Out)
}

// TestBroken reads files that are none of kbnode's.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "{", "[]", `{"q": 3}`, `{"q": {"n": null}}`, `null`, `{"q": null}`, `{"q": {"n": {"agents": {"gpu0": "x"}}}}`} {
		path := must.Write(t, t.TempDir(), "nodes.json", content)
		m, err := load(path)
		if broken := !strings.Contains(content, "null"); broken != (err != nil) {
			t.Errorf("%s: %v", content, err)
		}
		r := report(time.Now(), 1, "gpu0")
		m.Update(&r, true)
		must.Do(t, m.Save())
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 || len(r.Queues[0].Nodes) != 1 {
			t.Errorf("%s: %v, %v", content, info, err)
		}
	}
}
