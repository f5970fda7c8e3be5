package reconcile_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
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

// TestAutoUpdateComesAndGoes writes what updates the image, leaves a running update
// alone, and removes it all with its key.
func TestAutoUpdateComesAndGoes(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.sd.Words()
	file := func(p *plan.Plan, name, text string) {
		p.Files = append(p.Files, plan.File{Path: name, Mode: 0o644, Owner: "root", Content: header + text, Slot: -1})
	}
	cron := slots(1).plan(t)
	file(cron, plan.CronPath, "0 3 * * * root /usr/local/bin/kbnode image update --auto\n")
	r, words := m.apply(cron)
	equal(t, "changes for cron", []string{"create /etc/cron.d/kbnode"}, brief(r.Applied))
	equal(t, "words for cron", nil, words)

	timer := slots(1).plan(t)
	file(timer, plan.UnitDir+"/"+plan.ImageService, "[Service]\nType=oneshot\n")
	file(timer, plan.UnitDir+"/"+plan.ImageTimer, "[Timer]\nOnCalendar=*-*-* 03:00:00\n[Install]\nWantedBy=timers.target\n")
	timer.Units = append(timer.Units, plan.Unit{Name: plan.ImageService, Slot: -1}, plan.Unit{Name: plan.ImageTimer, Slot: -1, Enabled: true, Active: true})
	m.asks(timer, "enable kbnode-image.timer", "reload", "start kbnode-image.timer")
	m.wantAbsent(plan.CronPath)
	if err := m.sd.Start(t.Context(), plan.ImageService); err != nil { // as the timer does
		t.Fatal(err)
	}
	m.sd.Words()
	m.asks(timer)

	m.asks(slots(1).plan(t), "stop kbnode-image", "disable kbnode-image.timer", "stop kbnode-image.timer", "reload")
	if m.exists(plan.UnitDir+"/"+plan.ImageTimer) || m.exists(plan.UnitDir+"/"+plan.ImageService) {
		t.Error("the timer's files stay")
	}
}

// TestReloadSaysWhy looks at the reason of a reload that no file asks for.
func TestReloadSaysWhy(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	must.Do(t, m.sd.Disable(t.Context(), plan.NodeService))
	p := slots(1).plan(t)
	for _, name := range []string{"enabled", "disabled"} {
		for i := range p.Units {
			if p.Units[i].Name == plan.NodeService {
				p.Units[i].Enabled = name == "enabled"
			}
		}
		_, changes := m.diff(p)
		i := slices.IndexFunc(changes, func(c reconcile.Change) bool { return c.Kind == reconcile.Reload })
		if i < 0 || changes[i].Why != plan.NodeService+" is "+name {
			t.Errorf("%s: %q", name, brief(changes))
		}
		m.apply(p)
	}
}

// TestUninstallRemovesMetrics removes what daemons left for node_exporter. Where that fails, the rest goes anyway.
func TestUninstallRemovesMetrics(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	for _, dir := range []string{"/srv/a", "/srv/b"} {
		m.write(dir+"/"+textfile.Name, "kbnode_changes_waiting 0\n")
		m.write(dir+"/other.prom", "")
	}
	m.write("/srv/b/.kbnode.prom.new/x", "in the way")
	m.write(textfile.RecordPath, `["/srv/a","/srv/b","/srv/gone"]`)
	m.settled(slots(1).plan(t)) // while the node is installed, they are the daemon's
	r, err := m.h.Uninstall(t.Context(), nil)
	must.Do(t, err)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "remove /srv/b/kbnode.prom: .kbnode.prom.new is a directory") {
		t.Errorf("warnings: %q", r.Warnings)
	}
	for _, dir := range []string{"/srv/a", "/srv/b"} {
		m.wantAbsent(dir + "/" + textfile.Name)
		if !m.exists(dir + "/other.prom") {
			t.Errorf("%s/other.prom is gone", dir)
		}
	}
	m.wantAbsent("/var/lib/kbnode")
}

// TestUninstallDisablesInstall: what is uninstalled does not come back with the next
// boot, and install leaves alone the unit that runs it.
func TestUninstallDisablesInstall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("/usr/lib/systemd/system/"+plan.InstallService, "[Install]\nWantedBy=multi-user.target\n")
	link := plan.UnitDir + "/multi-user.target.wants/" + plan.InstallService
	m.write(link, "") // in a target's directory only the name counts
	m.apply(slots(1).plan(t))
	m.apply(slots(2).plan(t))
	equal(t, "link on a node", true, m.exists(link))
	r, err := m.h.Uninstall(t.Context(), nil)
	must.Do(t, err)
	if !slices.Contains(brief(r.Applied), "disable "+plan.InstallService) {
		t.Errorf("uninstall does %q", brief(r.Applied))
	}
	equal(t, "link after uninstall", false, m.exists(link))
}

// TestUninstallUsers removes the users that kbnode made, and no others.
func TestUninstallUsers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	others := "root:x:0:0::/:\nkbnode-gitx:x:801:801::/:\nkbnode-gpu07:x:802:802::/:\nkbnode:x:803:803::/:"
	m.write("/etc/passwd", others)
	p := slots(1).plan(t)
	p.Users = append(p.Users, plan.User{Name: plan.GitUser, Home: "/nonexistent"})
	m.apply(p)
	equal(t, "users of a node", others+"\nkbnode-git:x:900:900::/nonexistent:/usr/sbin/nologin\nkbnode-gpu0:x:901:901::"+plan.WorkDir(0)+":/usr/sbin/nologin", m.read("/etc/passwd"))
	m.uninstall()
	equal(t, "users after uninstall", others, m.read("/etc/passwd"))
}

// TestUninstallLeavesNewFiles puts a file into a directory that is about to be removed.
func TestUninstallLeavesNewFiles(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	mine := plan.HooksDir + "/mine"
	m.h.OnStep(func(words string) error {
		if words == "remove "+plan.HooksDir {
			m.write(mine, "echo mine\n")
		}
		return nil
	})
	m.uninstall()
	equal(t, "file", true, m.exists(mine))
}

// TestUninstallLeavesOthersDirectories leaves a slot's directory that belongs to a user who is not kbnode's.
func TestUninstallLeavesOthersDirectories(t *testing.T) {
	t.Parallel()
	must.Root(t, "needs root, for owners")
	m := installed(t, 1)
	m.write(plan.WorkDir(7)+"/data", "")
	m.chown(4242, plan.WorkDir(7))
	m.uninstall()
	equal(t, "file", true, m.exists(plan.WorkDir(7)+"/data"))
}
