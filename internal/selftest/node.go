package selftest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// node checks what belongs to no slot.
func (t *tester) node() []Check {
	files := &tries{group: "files"}
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
		files.do = strings.ReplaceAll(f.do, "FILE", f.path)
		files.owned(f.path, f.never)
	}
	return append(comparison(t.Changes, -1, "the node's files, hooks and units"), files.checks...)
}

func (t *tester) engineSocket() string {
	path := t.policies[t.Plan.Slots[0].Index].DockerSocket
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// owned checks that root owns a file, and that its mode has none of the bits in never.
func (t *tries) owned(path string, never fs.FileMode) {
	info, err := os.Stat(path)
	if err != nil {
		t.add(errors.Is(err, fs.ErrNotExist), path, err.Error())
		return
	}
	bits := info.Mode().Perm()
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		bits |= 0o6000
	}
	uid, _, _ := host.Tree{Root: "/"}.TargetOwner(path)
	t.add(uid == 0 && bits&never == 0, path, fmt.Sprintf("mode %04o of user %d", bits, uid))
}
