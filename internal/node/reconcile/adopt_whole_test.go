package reconcile_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// oldDirs are the directories that the old scripts gave to the user of all agents.
var oldDirs = []string{"/etc/buildkite-agent", plan.HooksDir, plan.AgentDir(0), "/var/lib/buildkite-agent"}

const oldConfig = "/etc/buildkite-agent/buildkite-agent-gpu0.cfg"

// wholeOldNode is an old node with one slot as the scripts leave it: owners, modes, a
// token file, a hook that is a link and an empty directory.
func wholeOldNode(t *testing.T) *machine {
	t.Helper()
	m := oldNode(t, 1)
	m.write(plan.TokenPath, "s3cret\n")
	m.write("/opt/hook", "echo linked\n")
	must.Do(t, os.Symlink("/opt/hook", filepath.Join(m.h.Root, plan.HooksDir, "post-checkout")))
	for name, mode := range map[string]os.FileMode{oldConfig: 0o640, plan.HooksDir: 0o775, "/var/lib/buildkite-agent/": 0o750, "/etc/kbnode/slots/": 0o700} {
		if strings.HasSuffix(name, "/") {
			must.Do(t, os.MkdirAll(filepath.Join(m.h.Root, name), 0o755))
		}
		must.Do(t, os.Chmod(filepath.Join(m.h.Root, name), mode))
	}
	m.chown(4242, append(oldDirs, oldConfig, plan.HooksDir+"/pre-command", "/etc/kbnode/slots")...)
	m.h.Adopt = true
	return m
}

// adopt adopts a node with another token, and returns what systemd was asked to do.
func (m *machine) adopt(p *plan.Plan) []string {
	m.t.Helper()
	must.Do(m.t, m.h.WriteInput(plan.TokenPath, "# "+plan.Marker+"\nother\n"))
	_, words := m.apply(p)
	return words
}

func TestAdoptRemovesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	m := wholeOldNode(t)
	before := m.tree()
	p := slots(1).plan(t)
	var steps []string
	m.h.OnStep(func(words string) error { steps = append(steps, words); return nil })
	words := m.adopt(p)
	m.h.OnStep(nil)
	if at := slices.Index(steps, "remove "+oldConfig); at < slices.Index(steps, "reload systemd") || at < slices.Index(steps, "stop "+plan.AgentUnit(0)) {
		t.Errorf("the agent's configuration was removed before its unit was replaced, loaded and stopped: %v", steps)
	}
	if slices.Index(steps, "remove "+plan.HooksDir+"/pre-command") > slices.Index(steps, "start "+plan.AgentUnit(0)) {
		t.Errorf("a hook was there when the new agent started: %v", steps)
	}
	after := m.tree()
	for _, name := range []string{oldConfig, plan.HooksDir + "/pre-command", plan.HooksDir + "/post-checkout", "/etc/cron.d/kernelbot-update"} {
		if _, ok := after[name]; ok {
			t.Errorf("%s is left", name)
		}
		if backup := after[reconcile.BackupDir+name]; backup != before[name] {
			t.Errorf("the backup of %s is %q, the file was %q", name, backup, before[name])
		}
	}
	equal(t, "words", []string{"disable agent-gpu0", "enable kbnode", "reload", "stop agent-gpu0", "start buildkite.slice",
		"set buildkite.slice AllowedCPUs=2-3 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto",
		"start buildkite-gpu0.slice", setWord(0, "2-3", 1<<30), "start gpu0.socket", "start agent-gpu0", "start kbnode"}, words)
	equal(t, "example of a hook", before[plan.HooksDir+"/command.sample"], after[plan.HooksDir+"/command.sample"])
	equal(t, "backups", "drwx------", after[reconcile.BackupDir+"/"])
	equal(t, "backups of /etc", "drwxr-xr-x", after[reconcile.BackupDir+"/etc/"])
	for _, dir := range []string{"/etc/buildkite-agent/", plan.HooksDir + "/", "/var/lib/buildkite-agent/", plan.AgentDir(0) + "/"} {
		equal(t, dir, "drwxr-xr-x", after[dir])
	}

	m.h.Adopt = false
	m.asks(p)
	equal(t, "tree after the second run", after, m.tree())

	m.write(plan.HooksDir+"/pre-command", "echo new\n") // consent does not cover it
	must.Err(t, m.try(p), plan.HooksDir+"/pre-command: not written by kbnode")
}

// While a job of the old setup runs, its home stays with its user, but other users can
// find their own directories below it.
func TestAdoptLeavesHomeOfRunningJob(t *testing.T) {
	t.Parallel()
	must.Root(t, "needs root, for owners")
	m := wholeOldNode(t)
	m.run(0)
	p := slots(1).plan(t)
	for range 3 {
		m.adopt(p)
		m.h.Adopt = false
		equal(t, "home", "drwxr-xr-x of 4242:4242", m.tree()["/var/lib/buildkite-agent/"])
		m.wantAbsent(oldConfig)
	}
	_, changes := m.diff(p)
	i := slices.IndexFunc(changes, func(c reconcile.Change) bool { return c.Subject == "/var/lib/buildkite-agent/" })
	if i < 0 || changes[i].Deferred != "waits for job job-gpu0 of slot gpu0" {
		t.Errorf("the home's owner does not wait: %v", changes)
	}
	m.ends(0, p)
	equal(t, "home", "drwxr-xr-x", m.tree()["/var/lib/buildkite-agent/"])
	equal(t, "jobs killed", nil, m.sd.Killed())
}

// An idle agent of the old setup whose slot waits for CPUs would run its jobs with hooks
// that are not for it, so it stops at once.
func TestAdoptStopsIdleAgentThatWaits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for k, cpus := range []string{"4-5", "6-7"} { // slot 0 holds what slot 1 gets
		m.write(plan.UnitDir+"/"+plan.SliceName(k), "[Slice]\nAllowedCPUs="+cpus+"\n")
		m.write(plan.UnitDir+"/"+plan.AgentUnit(k), oldUnit+"[Service]\nSlice="+plan.SliceName(k)+"\n")
		m.write("/etc/buildkite-agent/buildkite-agent-"+plan.SlotName(k)+".cfg", "token=\"s3cret\"\n")
		must.Do(t, m.sd.Start(t.Context(), plan.AgentUnit(k)))
	}
	m.sd.Words()
	m.run(0)
	m.h.Adopt = true
	p := slots(2).plan(t)
	r, words := m.apply(p)
	equal(t, "words", []string{"enable kbnode", "reload", "drain agent-gpu0", "stop agent-gpu1",
		"set buildkite.slice AllowedCPUs=2-5 MemoryMax=infinity MemorySwapMax=infinity TasksMax=infinity DevicePolicy=auto", "start kbnode"}, words)
	equal(t, "reasons", map[string]bool{"waits for job job-gpu0 of slot gpu0": true}, deferred(r.Deferred, 1))
	m.h.Adopt = false
	m.asks(p)
	m.ends(0, p)
}

func TestWriteInputKeepsBackup(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write(plan.TokenPath, "theirs\n")
	must.Do(t, os.Chmod(filepath.Join(m.h.Root, plan.TokenPath), 0o640))
	for range 3 { // our own file gets no backup
		must.Do(t, m.h.WriteInput(plan.TokenPath, "# "+plan.Marker+"\nnext\n"))
	}
	tree := m.tree()
	equal(t, "token", "-rw------- # "+plan.Marker+"\nnext\n", tree[plan.TokenPath])
	equal(t, "backup", "-rw-r----- theirs\n", tree[reconcile.BackupDir+plan.TokenPath])
	m.wantAbsent(reconcile.BackupDir + plan.TokenPath + ".2")
}
