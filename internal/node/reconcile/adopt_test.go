package reconcile_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

const oldUnit = "[Unit]\nDescription=Buildkite Agent\n[Service]\nUser=buildkite-agent\n[Install]\nWantedBy=multi-user.target\n"

// oldNode is a machine of the old scripts with n running agents.
func oldNode(t *testing.T, n int) *machine {
	t.Helper()
	m := newMachine(t)
	for k := range n {
		m.write(plan.UnitDir+"/"+plan.AgentUnit(k), oldUnit)
		m.write("/etc/buildkite-agent/buildkite-agent-"+plan.SlotName(k)+".cfg", "token=\"s3cret\"\n")
		must.Do(t, m.sd.Start(t.Context(), plan.AgentUnit(k)))
		must.Do(t, m.sd.Enable(t.Context(), plan.AgentUnit(k)))
	}
	m.write(plan.HooksDir+"/environment", "export OLD=1\n")
	m.write(plan.HooksDir+"/pre-command", "echo old\n")
	m.write(plan.HooksDir+"/command.sample", "echo an example\n")
	m.write("/etc/cron.d/kernelbot-update", "0 3 * * * root update-image.sh --auto\n")
	m.write(plan.AgentDir(0)+"/buildkite-agent.cfg", "token=\"s3cret\"\n")
	m.sd.Words()
	return m
}

func TestConflict(t *testing.T) {
	t.Parallel()
	m := wholeOldNode(t)
	m.h.Adopt = false
	before := m.tree()
	p := slots(1).plan(t)
	err := m.try(p)
	var conflict *reconcile.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("error is %v", err)
	}
	equal(t, "paths", []string{
		plan.AgentDir(0) + "/buildkite-agent.cfg",
		plan.UnitDir + "/" + plan.AgentUnit(0),
		plan.HooksDir + "/environment",
		oldConfig,
		plan.HooksDir + "/post-checkout",
		plan.HooksDir + "/pre-command",
		"/etc/cron.d/kernelbot-update",
	}, conflict.Paths)
	must.Contain(t, err.Error(), "--adopt")
	equal(t, "tree", before, m.tree())
	_, changes := m.diff(p)
	for _, c := range changes {
		if strings.Contains(c.Diff+c.Why, "s3cret") || c.Subject == oldConfig && c.Diff != "" {
			t.Errorf("the diff of %s shows %q", c.Subject, c.Diff)
		}
	}
}

func TestLinkInTheWayIsNotFollowed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("/etc/passwd-like", "keep me\n")
	m.write(plan.HooksDir+"/x", "")
	must.Do(t, os.Symlink("/etc/passwd-like", filepath.Join(m.h.Root, plan.HooksDir, "environment")))
	p := slots(1).plan(t)
	must.Err(t, m.try(p), plan.HooksDir+"/environment: not written by kbnode")
	m.h.Adopt = true
	m.apply(p)
	equal(t, "target of the link", "keep me", m.read("/etc/passwd-like"))
	equal(t, "hook", true, strings.Contains(m.read(plan.HooksDir+"/environment"), plan.Marker))
	if target, err := os.Readlink(filepath.Join(m.h.Root, reconcile.BackupDir, plan.HooksDir, "environment")); target != "/etc/passwd-like" {
		t.Errorf("the link is not in the backup: %q, %v", target, err)
	}
}

func TestAdoptBusy(t *testing.T) {
	t.Parallel()
	m := oldNode(t, 2)
	m.run(0)
	m.run(1)
	m.write(plan.UnitDir+"/"+plan.SliceName(0), "[Slice]\nMemoryMax=1G\n") // deferred, because slot 0 is busy
	m.h.Adopt = true
	p := slots(1).plan(t) // the old node had one slot more
	r, words := m.apply(p)
	equal(t, "words", []string{"disable agent-gpu0", "enable kbnode", "reload", "drain agent-gpu0", "start buildkite.slice",
		"set buildkite.slice AllowedCPUs=2-3 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto", "start kbnode"}, words)
	equal(t, "reasons", map[string]bool{"waits for job job-gpu0 of slot gpu0": true}, deferred(r.Deferred, 0))

	// What was agreed to once needs no --adopt in the daemon's passes.
	m.h.Adopt = false
	equal(t, "the slice in the way", "[Slice]\nMemoryMax=1G", m.read(reconcile.BackupDir+plan.UnitDir+"/"+plan.SliceName(0)))
	equal(t, "the job's limits", true, strings.HasSuffix(m.read(plan.UnitDir+"/"+plan.SliceName(0)), "\n[Slice]\nMemoryMax=1G"))
	m.asks(p, "disable agent-gpu1", "reload", "drain agent-gpu1")
	m.asks(p)
	m.finish(0)
	m.ends(1, p)
	m.wantAbsent(plan.UnitDir + "/" + plan.AgentUnit(1))
}

func TestAdoptTwiceKeepsBoth(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.h.Adopt = true
	hook, backup := plan.HooksDir+"/environment", reconcile.BackupDir+plan.HooksDir+"/environment"
	for _, text := range []string{"first", "second"} {
		m.write(hook, text)
		m.apply(slots(1).plan(t))
	}
	m.uninstall()
	equal(t, "backups after uninstall", []string{"first", "second"}, []string{m.read(backup), m.read(backup + ".2")})
	m.wantAbsent(hook)
}

// withHook adds a hook of kbnode's to a plan.
func withHook(p *plan.Plan, name string) *plan.Plan {
	p.Files = append(p.Files, plan.File{Path: plan.HooksDir + "/" + name, Mode: 0o755, Owner: "root", Content: "#!/bin/sh\n" + header, Slot: -1})
	return p
}

// TestFileOfAnotherVersion keeps a file that only another version of kbnode plans until the job ended that may use it.
func TestFileOfAnotherVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	const name = plan.HooksDir + "/pre-exit"
	m.apply(withHook(slots(2).plan(t), "pre-exit"))
	p := slots(2).again().plan(t)
	m.run(0)
	r, _ := m.apply(p)
	if !slices.Contains(brief(r.Deferred), "delete "+name) || !m.exists(name) {
		t.Errorf("%s of a running job is gone; deferred are %v", name, brief(r.Deferred))
	}
	m.finish(0)
	m.apply(p)
	m.wantAbsent(name)
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
