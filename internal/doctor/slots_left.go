package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// leftAfter is the age from which something in an idle slot counts as left behind. A
	// job or another check may have started since the slot was seen idle.
	leftAfter = 10 * time.Second
	// Limits of one scan.
	maxGroups    = 4096
	maxProcesses = 1 << 16
	userHZ       = 100 // ticks per second in the times that the kernel reports
)

// containerOf returns the short ID of the container of a scope, or "".
func containerOf(scope string) string {
	id, ok := strings.CutPrefix(strings.TrimSuffix(scope, ".scope"), "docker-")
	if !ok || len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id[:12]
}

// process is a process in the cgroups of a slot.
type process struct {
	pid   int
	name  string
	group string // below the slice
	age   time.Duration
}

func (p process) String() string { return fmt.Sprintf("process %d (%s)", p.pid, p.name) }

// processes lists the processes in a cgroup and below it.
func (m *Machine) processes(ctx context.Context, cgroup string) (all []process) {
	groups := 0
	top := m.path(cgroupRoot + cgroup)
	_ = filepath.WalkDir(top, func(dir string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // it went away
		}
		if groups++; groups > maxGroups || ctx.Err() != nil {
			return filepath.SkipAll
		}
		group := strings.TrimPrefix(dir, top)
		text, _ := m.read(cgroupRoot + cgroup + group + "/cgroup.procs")
		for field := range strings.FieldsSeq(text) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && len(all) < maxProcesses {
				all = append(all, process{pid: pid, name: m.comm(pid), group: strings.TrimPrefix(group, "/"), age: m.age(pid)})
			}
		}
		return nil
	})
	return all
}

// comm returns a process's name, which a job may have chosen.
func (m *Machine) comm(pid int) string {
	comm, _ := m.read("/proc/" + strconv.Itoa(pid) + "/comm")
	return text.Line(comm, 40)
}

// age returns 0 for a process that has ended.
func (m *Machine) age(pid int) time.Duration {
	text, err := m.read("/proc/" + strconv.Itoa(pid) + "/stat")
	up, errUp := m.read("/proc/uptime")
	if err != nil || errUp != nil {
		return 0
	}
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // field 3 is the first
	up, _, _ = strings.Cut(up, " ")
	seconds, err := strconv.ParseFloat(up, 64)
	if err != nil || len(f) < 20 {
		return 0
	}
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration((seconds - float64(ticks)/userHZ) * float64(time.Second))
}

// leftContainers uses what was observed before any check could start a container.
func (m *Machine) leftContainers(ctx context.Context) []Finding {
	var all []Finding
	seen := 0
	for _, s := range m.State.Slots {
		seen += len(s.Containers)
		if s.Job != nil {
			continue
		}
		for _, scope := range s.Containers {
			var oldest time.Duration
			for _, p := range m.processes(ctx, s.Slice.Cgroup+"/"+scope) {
				oldest = max(oldest, p.age)
			}
			if id := containerOf(scope); id != "" && oldest >= leftAfter {
				all = append(all, warn("container %s runs without a job", id).of(s.Index).by("docker rm -f %s", id))
			}
		}
	}
	// With the cgroupfs driver, Docker makes a slice's directory in its own cgroup.
	for _, pattern := range []string{"/*", "/*/*"} {
		dirs, _ := filepath.Glob(m.path(cgroupRoot + pattern + "/buildkite-gpu*.slice"))
		direct, _ := filepath.Glob(m.path(cgroupRoot + "/buildkite-gpu*.slice"))
		if pattern == "/*" {
			dirs = append(dirs, direct...)
		}
		for _, dir := range dirs {
			group := strings.TrimPrefix(dir, m.path(cgroupRoot))
			if k, ok := plan.OwnsUnit(path.Base(group)); ok && path.Dir(group) != "/"+plan.ParentSlice && len(m.processes(ctx, group)) > 0 {
				all = append(all, fail("containers run in %s, where the slot's limits do not apply", group).of(k).
					advise("end them (docker ps, docker rm -f), and see docker-cgroup-driver above"))
			}
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("%d, of running jobs", seen)}
	}
	return all
}

func (m *Machine) leftProcesses(ctx context.Context) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(warn("%s", err).advise("check why /etc/passwd cannot be read"))
	}
	inside, slotOf := map[int]bool{}, map[string]int{} // by PID, by user ID
	left := map[int][]process{}
	for _, s := range m.State.Slots {
		if u, ok := users[plan.UserName(s.Index)]; ok && u.UID > 0 {
			slotOf[strconv.Itoa(u.UID)] = s.Index
		}
		if s.Slice.Cgroup == "" {
			continue
		}
		for _, p := range m.processes(ctx, s.Slice.Cgroup) {
			inside[p.pid] = true
			first, _, _ := strings.Cut(p.group, "/")
			// Another check covers containers, and kbnode's own programs end by themselves.
			if s.Job == nil && p.pid != s.Agent.MainPID && p.age >= leftAfter && containerOf(first) == "" && !strings.HasPrefix(first, "kbnode-") {
				left[s.Index] = append(left[s.Index], p)
			}
		}
	}
	var all []Finding
	for _, k := range slices.Sorted(maps.Keys(left)) {
		all = append(all, ofProcesses(left[k], "runs without a job").of(k))
	}
	outside := map[int][]process{}
	entries, err := os.ReadDir(m.path("/proc"))
	if err != nil {
		return found(warn("%s", err).advise("check why /proc cannot be read"))
	}
	for _, e := range entries[:min(len(entries), maxProcesses)] {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || inside[pid] || ctx.Err() != nil {
			continue
		}
		if k, ours := slotOf[m.uid(pid)]; ours && m.age(pid) >= leftAfter {
			outside[k] = append(outside[k], process{pid: pid, name: m.comm(pid)})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(outside)) {
		all = append(all, ofProcesses(outside[k], fmt.Sprintf("of user %s runs outside the slot's slice, without its limits", plan.UserName(k))).of(k))
	}
	if len(all) == 0 {
		all = []Finding{ok("none")}
	}
	return Answer{Findings: all}
}

// ofProcesses names the first process, and ends all.
func ofProcesses(list []process, what string) Finding {
	text, pids := fmt.Sprintf("%s %s", list[0], what), make([]string, 0, len(list))
	if n := len(list) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	for _, p := range list {
		pids = append(pids, strconv.Itoa(p.pid))
	}
	f := warn("%s", text)
	if len(pids) > 20 {
		return f.advise("see systemd-cgls, and end them")
	}
	return f.by("kill -9 %s", strings.Join(pids, " "))
}

// uid returns the user ID of a process, or "" if it has ended.
func (m *Machine) uid(pid int) string {
	text, _ := m.read("/proc/" + strconv.Itoa(pid) + "/status")
	_, after, _ := strings.Cut(text, "\nUid:")
	if f := strings.Fields(after); len(f) > 0 {
		return f[0]
	}
	return ""
}
