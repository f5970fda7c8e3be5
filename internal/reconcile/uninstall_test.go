package reconcile_test

import (
	"os"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

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
	if os.Geteuid() != 0 {
		t.Skip("needs root, for owners")
	}
	m := installed(t, 1)
	m.write(plan.WorkDir(7)+"/data", "")
	m.chown(4242, plan.WorkDir(7))
	m.uninstall()
	equal(t, "file", true, m.exists(plan.WorkDir(7)+"/data"))
}
