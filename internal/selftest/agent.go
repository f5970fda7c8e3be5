package selftest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

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
	proc := "/proc/" + strconv.Itoa(pid)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return nil, fmt.Errorf("inspect agent: %w", err)
	}
	mounts, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("inspect agent: %w", err)
	}
	checks := judgeStatus(string(status), user, do)
	homes := slices.DeleteFunc([]string{"/home", "/root"}, func(dir string) bool { _, err := os.Stat(dir); return err != nil })
	checks = append(checks, judgeMounts(string(mounts), homes, do)...)
	slice := s.state.Slice.Cgroup
	checks = append(checks, Check{
		Group: "agent", Tried: "its cgroup", Saw: s.state.Agent.Cgroup, Do: do,
		Held: slice != "" && strings.HasPrefix(s.state.Agent.Cgroup, slice+"/"),
	})
	return tidyChecks(checks), nil
}

// tidyChecks clears Do of checks that held.
func tidyChecks(checks []Check) []Check {
	for i := range checks {
		if checks[i].Held {
			checks[i].Do = ""
		}
	}
	return checks
}

// judgeStatus checks /proc/PID/status of an agent.
func judgeStatus(status string, user reconcile.UserState, do string) []Check {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.Join(strings.Fields(value), " ")
	}
	four := func(id int) string { return strings.TrimSpace(strings.Repeat(strconv.Itoa(id)+" ", 4)) }
	var checks []Check
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
		checks = append(checks, Check{Group: "agent", Tried: w.tried, Saw: w.name + " " + got, Held: got == w.want || w.name == "Groups" && got == "", Do: do})
	}
	return checks
}

// judgeMounts checks /proc/PID/mountinfo of an agent: which parts of the system are
// read-only, and which are hidden.
func judgeMounts(mountinfo string, homes []string, do string) []Check {
	type mount struct{ point, options, root, fstype string }
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 6 || dash < 6 || dash+1 >= len(f) {
			continue
		}
		mounts = append(mounts, mount{f[4], f[5], f[3], f[dash+1]})
	}
	// The last mount that covers a path is the visible one.
	at := func(path string) (best mount) {
		for _, m := range mounts {
			if (m.point == "/" || path == m.point || strings.HasPrefix(path, m.point+"/")) && len(m.point) >= len(best.point) {
				best = m
			}
		}
		return best
	}
	var checks []Check
	// Not /sys itself, which systemd 257 leaves writable for those who may write to it.
	for _, path := range []string{"/", "/usr", "/etc", "/etc/buildkite-agent", "/proc/sys", "/sys/fs/cgroup", "/boot"} {
		m := at(path)
		held := slices.Contains(strings.Split(m.options, ","), "ro")
		checks = append(checks, Check{Group: "agent", Tried: "writing to " + path, Saw: "mounted " + m.options, Held: held, Do: do})
	}
	for _, path := range homes {
		m := at(path)
		// systemd covers a directory with one that no one may enter.
		held := m.point == path && (strings.Contains(m.root, "systemd/inaccessible") || m.fstype == "tmpfs" && m.root == "/")
		checks = append(checks, Check{Group: "agent", Tried: "files in " + path, Saw: covered(m.point == path), Held: held, Do: do})
	}
	for _, path := range []string{"/tmp", "/var/tmp"} {
		m := at(path)
		checks = append(checks, Check{Group: "agent", Tried: "other programs' files in " + path, Saw: covered(m.point == path), Held: m.point == path, Do: do})
	}
	return checks
}

func covered(yes bool) string {
	if yes {
		return "covered by its own directory"
	}
	return "the host's own directory"
}
