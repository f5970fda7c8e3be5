package selftest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// agent checks how the kernel confines the slot's agent. A drop-in of the unit could have changed it.
func (s *trial) agent(context.Context) ([]Check, error) {
	unit := plan.AgentUnit(s.plan.Index)
	do := fmt.Sprintf("see systemctl cat %[1]s; sudo systemctl revert %[1]s && sudo kbnode reconcile && sudo systemctl restart %[1]s", unit)
	pid := s.state.Agent.MainPID
	if pid == 0 || s.state.Agent.Active != "active" {
		return []Check{{Group: "agent", Tried: "the agent's process", Saw: "the agent does not run", Do: "sudo kbnode reconcile; journalctl -u " + unit + " shows why it ended"}}, nil
	}
	user, ok := s.t.machine.users[s.plan.User]
	if !ok {
		return nil, fmt.Errorf("the slot's user %s does not exist", s.plan.User)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil, fmt.Errorf("inspect agent: %w", err)
	}
	mounts, ok := host.Tree{Root: "/"}.Mounts(strconv.Itoa(pid))
	if !ok {
		return nil, errors.New("inspect agent: its mounts cannot be read")
	}
	t := &tries{group: "agent", do: do}
	t.status(string(status), user)
	t.mounts(mounts, slices.DeleteFunc([]string{"/home", "/root"}, func(dir string) bool { _, err := os.Stat(dir); return err != nil }))
	slice := s.state.Slice.Cgroup
	t.add(slice != "" && strings.HasPrefix(s.state.Agent.Cgroup, slice+"/"), "its cgroup", s.state.Agent.Cgroup)
	return t.checks, nil
}

// status checks /proc/PID/status of an agent.
func (t *tries) status(status string, user host.User) {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.Join(strings.Fields(value), " ")
	}
	four := func(id int) string { return strings.TrimSpace(strings.Repeat(strconv.Itoa(id)+" ", 4)) }
	for _, w := range []struct{ tried, name, want string }{
		{"its user", "Uid", four(user.UID)},
		{"its group", "Gid", four(user.GID)},
		{"its other groups", "Groups", strconv.Itoa(user.GID)},
		{"new privileges", "NoNewPrivs", "1"},
		{"system calls filtered", "Seccomp", "2"},
		{"capabilities", "CapEff", "0000000000000000"},
		{"capabilities to come", "CapPrm", "0000000000000000"},
	} {
		got := fields[w.name]
		t.add(got == w.want || w.name == "Groups" && got == "", w.tried, w.name+" "+got)
	}
}

// mounts checks which parts of the system are read-only for an agent, and which are hidden.
func (t *tries) mounts(mounts []host.Mount, homes []string) {
	// Not /sys itself, which systemd 257 leaves writable for those who may write to it.
	for _, path := range []string{"/", "/usr", "/etc", "/etc/buildkite-agent", "/proc/sys", "/sys/fs/cgroup", "/boot"} {
		m := host.MountOf(mounts, path)
		t.add(slices.Contains(strings.Split(m.Options, ","), "ro"), "writing to "+path, "mounted "+m.Options)
	}
	for _, path := range homes {
		m := host.MountOf(mounts, path)
		// systemd covers a directory with one that no one may enter.
		t.add(m.Point == path && (strings.Contains(m.Root, "systemd/inaccessible") || m.Kind == "tmpfs" && m.Root == "/"), "files in "+path, covered(m.Point == path))
	}
	for _, path := range []string{"/tmp", "/var/tmp"} {
		own := host.MountOf(mounts, path).Point == path
		t.add(own, "other programs' files in "+path, covered(own))
	}
}

func covered(yes bool) string {
	if yes {
		return "covered by its own directory"
	}
	return "the host's own directory"
}
