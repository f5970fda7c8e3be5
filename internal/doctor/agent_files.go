package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// agentHooks checks the hooks, which run on the host in every job. The agent silently skips
// a hook that it cannot execute.
func agentHooks(_ context.Context, m *Machine) Answer {
	var all []Finding
	if uid, _, mode := owner(m.path(plan.HooksDir)); uid != root() || mode&0o022 != 0 {
		all = append(all, fail("users other than root can add hooks to %s (mode %04o)", plan.HooksDir, mode.Perm()).
			safely("chown root:root %[1]s && chmod 755 %[1]s", plan.HooksDir))
	}
	planned := 0
	for _, f := range m.Plan.Files {
		if path.Dir(f.Path) == plan.HooksDir {
			planned++
			if why := hookProblem(m, f.Path); why != "" {
				all = append(all, fail("hook %s %s, so every job runs without it", path.Base(f.Path), why).safely("kbnode reconcile"))
			}
		}
	}
	for _, e := range plan.EarlierFiles {
		if path.Dir(e.Pattern) != plan.HooksDir || slices.ContainsFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == e.Pattern }) {
			continue
		}
		if _, err := os.Lstat(m.path(e.Pattern)); err == nil {
			all = append(all, fail("hook %s is not kbnode's, but runs on the host in every job", path.Base(e.Pattern)).by("kbnode install --adopt --yes"))
		}
	}
	if len(all) == 0 {
		all = found(ok("%d hooks", planned)).Findings
	}
	return Answer{Findings: all}
}

// hookProblem returns why the agent skips a hook or fails with it.
func hookProblem(m *Machine, name string) string {
	uid, _, mode := owner(m.path(name))
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
	text, err := m.read(name)
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
	if info, err := os.Stat(m.path(program)); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Sprintf("needs %.80q, which does not exist", program)
	}
	return ""
}

// buildPaths checks the directories in which agents make checkouts.
func buildPaths(_ context.Context, m *Machine) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(fail("%s", lines(err)).advise("see /etc/passwd"))
	}
	var all []Finding
	for _, s := range m.Plan.Slots {
		f := ok("owner root, the slot's group, mode %04o", plan.WorkMode)
		u, there := users[s.User]
		if !there {
			f = fail("user %s does not exist", s.User).safely("kbnode reconcile")
		} else {
			for _, dir := range []string{plan.WorkDir(s.Index), plan.BuildsDir(s.Index)} {
				if bad := dirProblem(m, dir, u.GID); bad.Status > OK {
					f = bad
					break
				}
			}
		}
		all = append(all, f.of(s.Index))
	}
	return Answer{Findings: together(all)}
}

func dirProblem(m *Machine, dir string, gid int) Finding {
	uid, g, mode := owner(m.path(dir))
	switch bits := uint32(mode.Perm()) | uint32((mode&fs.ModeSticky)/fs.ModeSticky)<<9; {
	case uid < 0:
		return fail("%s is missing", dir).safely("kbnode reconcile")
	case !mode.IsDir():
		return fail("%s is not a directory", dir).advise("move it away and run sudo kbnode reconcile")
	case uid != root() || g != gid || bits != plan.WorkMode:
		return fail("%s has user %d, group %d, mode %04o; it must have user root, group %d, mode %04o", dir, uid, g, bits, gid, plan.WorkMode).safely("kbnode reconcile")
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(m.path(dir), &st); {
	case err != nil:
		return fail("%s: %s", dir, err).advise("see sudo dmesg, and check its file system")
	case st.Flags&unix.ST_RDONLY != 0:
		return fail("%s is mounted read-only", dir).advise("find the cause with sudo dmesg | grep -i 'remount\\|I/O error', then mount it again or reboot")
	case st.Flags&unix.ST_NOEXEC != 0:
		return fail("%s is mounted with noexec: no job can run what it builds", dir).advise("remove noexec from its line in /etc/fstab and mount it again")
	}
	return Finding{}
}

// owner returns the owner, group and mode of a path, or -1, -1 and 0 if lstat fails. It
// does not follow links.
func owner(name string) (uid, gid int, mode fs.FileMode) {
	info, err := os.Lstat(name)
	if err != nil {
		return -1, -1, 0
	}
	if st, is := info.Sys().(*syscall.Stat_t); is {
		uid, gid = int(st.Uid), int(st.Gid)
	}
	return uid, gid, info.Mode()
}

// root returns the user who owns the machine's files: root, or the user who runs a test.
func root() int { return os.Geteuid() }

// list returns the names of the machine's files that match a pattern.
func (m *Machine) list(pattern string) []string {
	names, _ := filepath.Glob(m.path(pattern)) // the patterns are well formed
	for i, name := range names {
		rel, err := filepath.Rel(m.Root, name)
		if names[i] = "/" + rel; err != nil {
			names[i] = name
		}
	}
	return names
}
