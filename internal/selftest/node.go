package selftest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// node checks what belongs to no slot.
func (t *tester) node() []Check {
	checks := comparison(t.Changes, -1, "the node's files, hooks and units")
	for _, f := range []struct {
		path  string
		never fs.FileMode // bits that must not be set
		do    string
	}{
		{plan.TokenPath, 0o177, "sudo chown root: FILE && sudo chmod 600 FILE; then revoke the token in Buildkite, as a job may have read it"},
		{t.engineSocket(), 0o117, "sudo chmod 660 FILE"},
		{t.Binary, 0o6022, "sudo chown root: FILE && sudo chmod 755 FILE"},
		{plan.AgentCopy, 0o6066, "sudo kbnode reconcile"},
		{plan.RunnerCopy, 0o6022, "sudo kbnode reconcile"},
		{plan.HooksDir, 0o022, "sudo kbnode reconcile"},
	} {
		checks = append(checks, owned(f.path, f.never, strings.ReplaceAll(f.do, "FILE", f.path)))
	}
	return tidyChecks(checks)
}

func (t *tester) engineSocket() string {
	path := t.policies[t.Plan.Slots[0].Index].DockerSocket
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// owned checks that root owns a file, and that its mode has none of the bits in never.
func owned(path string, never fs.FileMode, do string) Check {
	c := Check{Group: "files", Tried: path, Do: do}
	info, err := os.Stat(path)
	if err != nil {
		c.Saw, c.Held = err.Error(), errors.Is(err, fs.ErrNotExist)
		return c
	}
	bits := info.Mode().Perm()
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		bits |= 0o6000
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	c.Saw = fmt.Sprintf("mode %04o", bits)
	c.Held = ok && st.Uid == 0 && bits&never == 0
	if ok {
		c.Saw += fmt.Sprintf(" of user %d", st.Uid)
	}
	return c
}
