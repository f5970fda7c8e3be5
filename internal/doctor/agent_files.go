package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// agentHooks checks the hooks: kbnode's, which tells that an agent has registered, and an operator's
// own, which run around each job.
func agentHooks(_ context.Context, m *Machine) Answer {
	var all []Finding
	if uid, _, mode := m.Owner(plan.HooksDir); uid != root() || mode&0o022 != 0 {
		all = append(all, fail("users other than root can add hooks to %s (mode %04o)", plan.HooksDir, mode.Perm()).
			Safely("chown root:root %[1]s && chmod 755 %[1]s", plan.HooksDir))
	}
	hooks := 0
	for _, f := range m.Plan.Files {
		if path.Dir(f.Path) == plan.HooksDir {
			hooks++
			if why := hookProblem(m, f.Path); why != "" {
				all = append(all, fail("hook %s %s, so kbnode cannot tell that agents have registered", path.Base(f.Path), why).Safely("kbnode reconcile"))
			}
		}
	}
	for _, e := range plan.EarlierFiles {
		if path.Dir(e.Pattern) != plan.HooksDir || slices.ContainsFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == e.Pattern }) {
			continue
		}
		if _, err := os.Lstat(m.Path(e.Pattern)); err != nil {
			continue
		}
		name := path.Base(e.Pattern)
		if !plan.IsOperatorHook(e.Pattern) {
			all = append(all, fail("hook %s is not kbnode's; hooks of an operator are %s", name, strings.Join(plan.OperatorHooks, " and ")).By("kbnode install --adopt --yes"))
		} else if why := hookProblem(m, e.Pattern); why != "" {
			all = append(all, fail("hook %s %s, so the slots run no job", name, why).Advise("mend or remove %s", e.Pattern))
		}
		hooks++
	}
	return otherwise(all, ok("%d of kbnode or the operator", hooks))
}

// hookProblem returns why the agent skips a hook or fails with it.
func hookProblem(m *Machine, name string) string {
	uid, _, mode := m.Owner(name)
	switch {
	case mode == 0 && uid < 0:
		return "is missing"
	case !mode.IsRegular():
		return "is not a file"
	case mode&0o111 != 0o111:
		return fmt.Sprintf("is not executable (mode %04o)", mode.Perm())
	case uid != root() || mode&0o022 != 0:
		return fmt.Sprintf("can be changed by users other than root (user %d, mode %04o)", uid, mode.Perm())
	}
	text, err := m.Read(name)
	if err != nil {
		return "cannot be read: " + because(err)
	}
	line, _, _ := strings.Cut(text, "\n")
	shebang, is := strings.CutPrefix(line, "#!")
	if !is {
		return "has no #! line"
	}
	program, _, _ := strings.Cut(strings.TrimSpace(shebang), " ")
	if strings.HasSuffix(line, "\r") {
		return "has Windows line endings"
	}
	if info, err := os.Stat(m.Path(program)); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Sprintf("needs %.80q, which does not exist", program)
	}
	return ""
}

// buildPaths checks the directories in which agents make checkouts.
func buildPaths(_ context.Context, m *Machine) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see /etc/passwd"))
	}
	return found(m.eachSlot(func(s plan.Slot) Finding {
		u, there := users[s.User]
		if !there {
			return fail("user %s does not exist", s.User).Safely("kbnode reconcile")
		}
		for _, dir := range []string{plan.WorkDir(s.Index), plan.BuildsDir(s.Index)} {
			if bad := dirProblem(m, dir, u.GID); bad.Status > OK {
				return bad
			}
		}
		return ok("owner root, the slot's group, mode %04o", plan.WorkMode)
	})...)
}

func dirProblem(m *Machine, dir string, gid int) Finding {
	uid, g, mode := m.Owner(dir)
	switch bits := uint32(mode.Perm()) | uint32((mode&fs.ModeSticky)/fs.ModeSticky)<<9; {
	case uid < 0:
		return fail("%s is missing", dir).Safely("kbnode reconcile")
	case !mode.IsDir():
		return fail("%s is not a directory", dir).Advise("move it away and run sudo kbnode reconcile")
	case uid != root() || g != gid || bits != plan.WorkMode:
		return fail("%s has user %d, group %d, mode %04o; it must have user root, group %d, mode %04o", dir, uid, g, bits, gid, plan.WorkMode).Safely("kbnode reconcile")
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(m.Path(dir), &st); {
	case err != nil:
		return fail("%s: %s", dir, err).Advise("see sudo dmesg, and check its file system")
	case st.Flags&unix.ST_RDONLY != 0:
		return fail("%s is mounted read-only", dir).Advise("find the cause with sudo dmesg | grep -i 'remount\\|I/O error', then mount it again or reboot")
	case st.Flags&unix.ST_NOEXEC != 0:
		return fail("%s is mounted with noexec: no job can run what it builds", dir).Advise("remove noexec from its line in /etc/fstab and mount it again")
	}
	return Finding{}
}

// root returns the user who owns the machine's files: root, or the user who runs a test.
func root() int { return os.Geteuid() }
