package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// withHook adds a hook of kbnode's to a plan.
func withHook(p *plan.Plan, name string) *plan.Plan {
	p.Files = append(p.Files, plan.File{Path: plan.HooksDir + "/" + name, Mode: 0o755, Owner: "root", Content: "#!/bin/sh\n" + header, Slot: -1})
	return p
}

// TestHooksOfAnEarlierVersion keeps what a job still uses until it has ended: hooks, and git's
// configuration.
func TestHooksOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	before := withHook(slots(2).plan(t), "pre-exit")
	const git = "/etc/buildkite-agent/gitconfig"
	before.Files = append(before.Files, plan.File{Path: git, Mode: 0o644, Owner: "root", Content: header, Slot: -1})
	m.apply(before)
	p := slots(2).again().plan(t)
	_, changes := m.diff(p)
	order := brief(changes)
	stop := slices.Index(order, "stop "+plan.AgentUnit(1))
	for _, name := range []string{plan.HooksDir + "/pre-exit", git} {
		if stop < 0 || slices.Index(order, "delete "+name) < stop {
			t.Errorf("an agent that may get a job runs without %s: %s", name, strings.Join(order, "\n"))
		}
	}
	m.run(0)
	r, _ := m.apply(p)
	for _, name := range []string{plan.HooksDir + "/pre-exit", git} {
		if !slices.Contains(brief(r.Deferred), "delete "+name) || !m.exists(name) {
			t.Errorf("%s of a running job is gone; deferred are %v", name, brief(r.Deferred))
		}
	}
	m.finish(0)
	m.apply(p)
	if m.exists(plan.HooksDir+"/pre-exit") || m.exists(git) {
		t.Error("the hook or git's configuration is left")
	}
}

// TestOperatorHooks leaves an operator's hooks alone, but not those of an earlier setup.
func TestOperatorHooks(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := withHook(slots(1).plan(t), "agent-startup")
	p.Files = slices.DeleteFunc(p.Files, func(f plan.File) bool { return f.Path == plan.HooksDir+"/environment" })
	const text = "#!/bin/bash\nexport A=1\n"
	m.write(plan.HooksDir+"/environment", text)
	m.h.Adopt = true
	m.apply(p)
	m.wantAbsent(plan.HooksDir + "/environment")
	m.write(plan.HooksDir+"/environment", text)
	m.write(plan.HooksDir+"/pre-exit", text)
	m.write(plan.HooksDir+"/command", text)
	_, changes := m.diff(p)
	equal(t, "changes", []string{"adopt " + plan.HooksDir + "/command"}, brief(changes))
}
