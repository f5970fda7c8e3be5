package doctor

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
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
			all = append(all, fail("hook %s %s, so the slots run no job", name, why).Advise("correct or remove %s", e.Pattern))
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

// root returns the user who owns the machine's files: root, or the user who runs a test.
func root() int { return os.Geteuid() }
