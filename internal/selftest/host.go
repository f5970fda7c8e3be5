package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
)

// programTime bounds a probe on the host.
const programTime = time.Minute

// machine is what the probes need to know of this one.
type machine struct {
	users   map[string]reconcile.UserState
	devices []string // that some job could want to open, by path
}

// readMachine looks for devices: GPUs of all slots and of none, disks, and what
// gives power over the kernel. Watchdogs are left alone: to open one is to
// start it.
func readMachine(p *plan.Plan) machine {
	var m machine
	m.users, _ = reconcile.ReadUsers("/")
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			m.devices = append(m.devices, g.Devices...)
		}
	}
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/nvidia-caps/*", "/dev/dri/renderD*", "/dev/dri/card*"} {
		found, _ := filepath.Glob(pattern) // the pattern is well formed
		m.devices = append(m.devices, found...)
	}
	disks, _ := os.ReadDir("/sys/block")
	for _, d := range disks {
		if !strings.HasPrefix(d.Name(), "ram") {
			m.devices = append(m.devices, "/dev/"+d.Name())
		}
	}
	m.devices = append(m.devices, "/dev/mem", "/dev/port", "/dev/kmsg", "/dev/loop-control", "/dev/fuse", "/dev/kvm", "/dev/net/tun",
		"/dev/vhost-net", "/dev/vhost-vsock", "/dev/nvram", "/dev/mapper/control", "/dev/uinput", "/dev/vfio/vfio", "/dev/cuse")
	slices.Sort(m.devices)
	m.devices = slices.DeleteFunc(slices.Compact(m.devices), func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || info.Mode()&fs.ModeDevice == 0
	})
	return m
}

// others are the devices that a slot must not open.
func (m machine) others(s plan.Slot) []string {
	return slices.DeleteFunc(slices.Clone(m.devices), func(path string) bool {
		return slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool { return slices.Contains(g.Devices, path) })
	})
}

// numbers are devices as the kernel counts them, for where there are no nodes.
func numbers(paths []string) []probe.Number {
	var list []probe.Number
	for _, path := range paths {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		list = append(list, probe.Number{
			Name: path, Block: st.Mode&unix.S_IFMT == unix.S_IFBLK, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
		})
	}
	return list
}

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

// owned checks that a file is root's, and none of these bits of its mode are set.
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

// listener checks that the slot's guard is who answers on its socket: the kernel
// tells which process made it listen.
func (s *slot) listener() Check {
	c := Check{Group: "requests", Tried: "who listens on " + s.policy.Socket, Do: s.hint()}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.policy.Socket})
	if err != nil {
		c.Saw = err.Error()
		return c
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	var cred *unix.Ucred
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }), err)
	}
	switch {
	case err != nil:
		c.Saw = err.Error()
	case int(cred.Pid) != s.state.Guard.MainPID:
		comm, _ := os.ReadFile("/proc/" + strconv.Itoa(int(cred.Pid)) + "/comm")
		c.Saw = fmt.Sprintf("process %d (%s), and the guard is process %d", cred.Pid, strings.TrimSpace(string(comm)), s.state.Guard.MainPID)
	default:
		c.Saw, c.Held, c.Do = "the slot's guard", true, ""
	}
	return c
}

// agent checks how the kernel holds the slot's agent, and so all commands of jobs
// on the host. A drop-in of the unit could have changed it.
func (s *slot) agent(context.Context) ([]Check, error) {
	unit := plan.AgentUnit(s.plan.Index)
	do := fmt.Sprintf("look at systemctl cat %[1]s; sudo systemctl revert %[1]s && sudo kbnode reconcile && sudo systemctl restart %[1]s", unit)
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
		return nil, fmt.Errorf("look at the agent: %w", err)
	}
	mounts, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look at the agent: %w", err)
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

// tidyChecks leaves what to do out of what held.
func tidyChecks(checks []Check) []Check {
	for i := range checks {
		if checks[i].Held {
			checks[i].Do = ""
		}
	}
	return checks
}

// judgeStatus reads /proc/<pid>/status of an agent.
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

// judgeMounts reads /proc/<pid>/mountinfo of an agent: which parts of the system
// it sees read-only, and which not at all.
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
	// The last mount that covers a path is the one that is seen.
	at := func(path string) (best mount) {
		for _, m := range mounts {
			if (m.point == "/" || path == m.point || strings.HasPrefix(path, m.point+"/")) && len(m.point) >= len(best.point) {
				best = m
			}
		}
		return best
	}
	var checks []Check
	for _, path := range []string{"/", "/usr", "/etc", "/etc/buildkite-agent", "/proc/sys", "/sys", "/sys/fs/cgroup", "/boot"} {
		m := at(path)
		held := slices.Contains(strings.Split(m.options, ","), "ro")
		checks = append(checks, Check{Group: "agent", Tried: "writing to " + path, Saw: "mounted " + m.options, Held: held, Do: do})
	}
	for _, path := range homes {
		m := at(path)
		// systemd covers a directory by one of its own that nobody may enter.
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
		return "covered by a directory of its own"
	}
	return "the host's own directory"
}

// host runs two probes in the slot's slice, where commands of jobs run: one as
// the slot's user, with all groups that the system gives it, and one as root,
// whom nothing but the slice keeps from a device.
func (s *slot) host(ctx context.Context) ([]Check, error) {
	ask := s.hostAsk()
	user, err := s.program(ctx, "user", s.plan.User, ask)
	if err != nil {
		return nil, err
	}
	rootAsk := probe.Ask{Open: s.t.machine.others(s.plan)}
	root, err := s.program(ctx, "root", "", rootAsk)
	if err != nil {
		return nil, err
	}
	id, err := userOf(s.t.machine, s.plan.User)
	if err != nil {
		return nil, err
	}
	return append(judgeHost(s.plan, s.policy, id, ask, user), judgeDevices(s.plan, rootAsk, root)...), nil
}

func userOf(m machine, name string) (reconcile.UserState, error) {
	u, ok := m.users[name]
	if !ok {
		return u, fmt.Errorf("the slot's user %s does not exist; run kbnode reconcile", name)
	}
	return u, nil
}

// program runs a probe in the slot's slice.
func (s *slot) program(ctx context.Context, what, user string, ask probe.Ask) (*probe.Facts, error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("ask a probe: %w", err)
	}
	out, err := s.t.Program(ctx, reconcile.Program{
		Unit: fmt.Sprintf("kbnode-selftest-%s-%s.service", s.plan.Name, what), Slice: s.policy.Slice, User: user,
		Argv: []string{s.t.Binary, "probe", string(text)}, Limit: programTime,
	})
	if err != nil {
		return nil, err
	}
	return readFacts(out)
}

func readFacts(text []byte) (*probe.Facts, error) {
	f := &probe.Facts{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read what a probe saw: %w", err)
	}
	return f, nil
}

// hostAsk is what a command of a job on the host would look for.
func (s *slot) hostAsk() probe.Ask {
	k, agent := s.plan.Index, strconv.Itoa(s.state.Agent.MainPID)
	ask := probe.Ask{
		Open: []string{
			plan.WorkDir(k), // its own: that it sees anything
			plan.TokenPath, "/run/credentials/" + plan.AgentUnit(k) + "/token", "/etc/shadow", plan.AgentCopy,
			"/proc/" + agent + "/environ", "/proc/" + agent + "/mem", "/proc/1/environ",
			plan.RunDir(k) + "/mounts", "/var/lib/docker",
		},
		Unix: []string{s.policy.Socket, s.policy.DockerSocket, "/run/docker.sock", "/run/containerd/containerd.sock"},
	}
	if s.policy.DiskBytes > 0 {
		ask.Open = append(ask.Open, plan.DiskDir(k))
		ask.Disks = []string{plan.WorkDir(k)}
	}
	for _, other := range s.t.Plan.Slots {
		if other.Index != k {
			ask.Open = append(ask.Open, plan.WorkDir(other.Index), plan.RunDir(other.Index)+"/agent")
			ask.Unix = append(ask.Unix, plan.SocketPath(other.Index))
		}
	}
	for _, f := range s.t.Plan.Files {
		if f.Slot == k || f.Slot < 0 {
			ask.Write = append(ask.Write, f.Path, filepath.Dir(f.Path))
		}
	}
	ask.Write = append(ask.Write, plan.BindingsPath, s.t.Binary, filepath.Dir(s.t.Binary), "/etc", "/etc/cron.d", plan.UnitDir, plan.RunDir(k))
	for _, dir := range []string{s.state.Slice.Cgroup, filepath.Dir(s.state.Slice.Cgroup)} {
		for _, file := range []string{"cpuset.cpus", "memory.max", "cgroup.procs"} {
			ask.Write = append(ask.Write, filepath.Join("/sys/fs/cgroup", dir, file))
		}
	}
	slices.Sort(ask.Write)
	ask.Write = slices.Compact(ask.Write)
	return ask
}

// denied are the ways in which the kernel says that something is not for one.
var denied = []string{"EPERM", "EACCES", "ENOENT", "EROFS", "ENOTDIR", "ESRCH"}

// judgeHost compares what the slot's user saw on the host with what it should.
func judgeHost(s plan.Slot, p plan.JobPolicy, user reconcile.UserState, ask probe.Ask, f *probe.Facts) []Check {
	const group = "host"
	var checks []Check
	for _, try := range f.Tries {
		c := Check{Group: group, Tried: try.Kind + " " + try.What, Saw: try.Saw, Held: slices.Contains(denied, try.Saw)}
		switch {
		case try.What == plan.WorkDir(s.Index), try.What == p.Socket && try.Kind == "unix":
			c.Held = try.Saw == "ok" // its own
			c.Do = "sudo kbnode reconcile && sudo systemctl restart " + plan.GuardUnit(s.Index)
		case try.What == plan.TokenPath:
			c.Do = "sudo chmod 600 " + plan.TokenPath + "; then revoke the token in Buildkite"
		case try.Kind == "unix" && (try.What == p.DockerSocket || strings.HasPrefix(try.What, "/run/docker") || strings.HasPrefix(try.What, "/run/containerd")):
			c.Do = fmt.Sprintf("look at ls -l %s and id %s; the socket must be of mode 0660, and the user in no group but its own (sudo gpasswd -d %[2]s docker)", try.What, s.User)
		default:
			c.Do = fmt.Sprintf("look at ls -ld %s; sudo kbnode reconcile", try.What)
		}
		checks = append(checks, c)
	}
	foreign := slices.DeleteFunc(slices.Clone(f.Groups), func(g int) bool { return g == user.GID })
	checks = append(checks,
		Check{Group: group, Tried: "its user", Saw: fmt.Sprintf("user %d", f.UID), Held: f.UID == user.UID && f.UID != 0, Do: "sudo kbnode reconcile"},
		Check{Group: group, Tried: "its groups", Saw: fmt.Sprintf("groups %v", f.Groups), Held: len(foreign) == 0, Do: fmt.Sprintf("look at id %[1]s; sudo gpasswd -d %[1]s GROUP for each but its own, such as docker", s.User)},
		Check{Group: group, Tried: "all CPUs", Saw: "CPUs " + f.CPUs, Held: sameCPUs(f.CPUs, p.CPUs), Do: "sudo kbnode reconcile"},
	)
	for _, dir := range ask.Disks {
		checks = append(checks, judgeDisk(group, dir, p.DiskBytes, f.Disks[dir]))
	}
	return tidyChecks(checks)
}

// judgeDevices compares what root could open in the slot's slice.
func judgeDevices(s plan.Slot, ask probe.Ask, f *probe.Facts) []Check {
	var checks []Check
	for _, path := range ask.Open {
		saw := f.Saw("open", path)
		checks = append(checks, Check{
			Group: "devices", Tried: "open " + path, Saw: saw, Held: saw == "EPERM" || saw == "ENOENT",
			Do: fmt.Sprintf("sudo kbnode reconcile; look at systemctl show -p DevicePolicy,DeviceAllow %s", plan.SliceName(s.Index)),
		})
	}
	return tidyChecks(checks)
}

// judgeDisk checks that what is written to a directory fills the slot's disk, and
// not the node's.
func judgeDisk(group, dir string, planned, size int64) Check {
	return Check{
		Group: group, Tried: "filling the disk below " + dir, Saw: fmt.Sprintf("%d MiB in all, planned are %d", size>>20, planned>>20),
		Held: size > 0 && size <= planned, Do: "sudo kbnode reconcile, and restart the slot's guard",
	}
}

func sameCPUs(a, b string) bool {
	x, errX := cpuset.Parse(a)
	y, errY := cpuset.Parse(b)
	return errX == nil && errY == nil && x.Equal(y)
}
