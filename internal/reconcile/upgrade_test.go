package reconcile_test

import (
	"path"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// run returns the plan for an agent of another version.
func (w want) run(t testing.TB, version string) *plan.Plan {
	t.Helper()
	w.generation = version
	p := w.plan(t)
	file := plan.AgentBinary(version)
	p.Dirs = append(p.Dirs, plan.Dir{Path: plan.AgentsDir, Mode: 0o755, Owner: "root"}, plan.Dir{Path: path.Dir(file), Mode: 0o755, Owner: "root"})
	p.Files = append(p.Files, plan.File{Path: file, Mode: 0o711, Owner: "root", Source: file, Slot: -1})
	return p
}

// Another agent is a change like any other: idle slots get it at once, busy ones after their
// job. A release stays while an agent runs that was started with it, also one of a slot that
// takes no more jobs, and until all agents have registered.
func TestAgentRelease(t *testing.T) {
	t.Parallel()
	m := installed(t, 3)
	const before, next = "3.90.0", "3.100.0"
	m.write(plan.AgentBinary(before), "#!/bin/sh\n")
	m.apply(slots(3).run(t, before))
	m.settled(slots(3).run(t, before))

	m.write(plan.AgentBinary(next), "#!/bin/sh\n")
	m.run(0)
	m.run(1)
	p := slots(3).park(1).run(t, next)
	_, words := m.apply(p)
	if all := strings.Join(words, "\n"); !strings.Contains(all, "start agent-gpu2") || strings.Contains(all, "start agent-gpu0") {
		t.Errorf("words: %q", words)
	}
	m.apply(p)
	m.finish(0)
	for range 2 {
		m.apply(p)
		equal(t, "what slot 1 still runs", true, m.exists(plan.AgentBinary(before)))
	}
	m.finish(1)
	for range 2 {
		m.apply(p)
		equal(t, "the way back", true, m.exists(plan.AgentBinary(before)))
	}
	register := func() {
		for k := range 3 {
			m.write(slot.RegisteredMarker(k), "")
		}
	}
	register()
	m.apply(p)
	m.wantAbsent(path.Dir(plan.AgentBinary(before)))
	equal(t, "what all run", true, m.exists(plan.AgentBinary(next)))
	m.settled(p)

	m.apply(slots(3).plan(t)) // back to the installed one
	register()
	m.apply(slots(3).plan(t))
	m.wantAbsent(path.Dir(plan.AgentBinary(next)))
	must.Do(t, m.h.WriteAgent(plan.AgentRelease{Version: next}))
	chosen, err := plan.ParseAgent([]byte(m.read(plan.AgentsPath)))
	equal(t, "chosen", next, chosen.Version)
	must.Do(t, err)
	m.write(plan.AgentBinary(next), "of a run that was cut off")
	m.uninstall()
	m.wantAbsent(plan.AgentsDir)
	m.wantAbsent(plan.AgentsPath)
}

// A release that is gone is an error that says how to get it back.
func TestAgentReleaseGone(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	must.Err(t, m.try(slots(1).run(t, "3.100.0")), "sudo kbnode upgrade --agent-version fetches it again")
}
