package host

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// CgroupRoot is where cgroup v2 is mounted.
const CgroupRoot = "/sys/fs/cgroup"

const (
	maxGroups    = 4096
	maxProcesses = 1 << 16
	userHZ       = 100 // ticks per second in the times that the kernel reports
)

// Process is a running process.
type Process struct {
	PID   int
	Name  string // which a job may have chosen
	Group string // its cgroup, below the one that was asked for
	Age   time.Duration
}

func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Name) }

// Process reads a process. One that has ended has neither name nor age.
func (t Tree) Process(pid int) Process {
	comm, _ := t.Read(proc(pid, "comm"))
	return Process{PID: pid, Name: text.Line(comm, 40), Age: t.age(pid)}
}

// Processes returns the processes in a cgroup and below it.
func (t Tree) Processes(ctx context.Context, cgroup string) (all []Process) {
	groups := 0
	top := t.Path(CgroupRoot + cgroup)
	_ = filepath.WalkDir(top, func(dir string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // it has ended
		}
		if groups++; groups > maxGroups || ctx.Err() != nil {
			return filepath.SkipAll
		}
		group := strings.TrimPrefix(dir, top)
		for field := range strings.FieldsSeq(t.Value(CgroupRoot + cgroup + group + "/cgroup.procs")) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && len(all) < maxProcesses {
				p := t.Process(pid)
				p.Group = strings.TrimPrefix(group, "/")
				all = append(all, p)
			}
		}
		return nil
	})
	return all
}

// PIDs returns all processes.
func (t Tree) PIDs() (pids []int) {
	for _, dir := range t.List("/proc/[0-9]*") {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && len(pids) < maxProcesses {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Args returns the command line of a process.
func (t Tree) Args(pid int) []string {
	line, _ := t.Read(proc(pid, "cmdline"))
	if line == "" {
		return nil
	}
	return strings.Split(strings.TrimRight(line, "\x00"), "\x00")
}

func (t Tree) age(pid int) time.Duration {
	stat := t.Value(proc(pid, "stat"))
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // field 3 is the first
	up, _, _ := strings.Cut(t.Value("/proc/uptime"), " ")
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

func proc(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
