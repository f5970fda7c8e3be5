package host

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// UserHz is how many ticks a second has in the times that the kernel reports, the same on every architecture
// that kbnode runs on (proc_pid_stat(5), sysconf(_SC_CLK_TCK)).
const UserHz = 100

// CgroupRoot is where cgroup v2 is mounted.
const CgroupRoot = "/sys/fs/cgroup"

const maxProcesses = 1 << 16

// Process is a running process.
type Process struct {
	PID  int
	Name string // which a job may have chosen
}

func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Name) }

// Process reads a process. One that has ended has no name.
func (t Tree) Process(pid int) Process {
	comm, _ := t.Read(proc(pid, "comm"))
	return Process{PID: pid, Name: text.Line(comm, 40)}
}

// Cgroup returns the cgroup of a process, such as "/system.slice/x.service", or "" if it has ended.
func (t Tree) Cgroup(pid int) string {
	_, group, _ := strings.Cut("\n"+t.Value(proc(pid, "cgroup")), "\n0::") // version 1 has other lines
	group, _, _ = strings.Cut(group, "\n")
	return group
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

// StartTicks returns when a process was started, in ticks after boot.
func (t Tree) StartTicks(pid int) (int64, error) {
	stat, err := t.Read(proc(pid, "stat"))
	// The name of the program is in parentheses and may contain anything, so count fields after the last
	// parenthesis. The start time is field 22.
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if err != nil || len(f) < 20 {
		return 0, fmt.Errorf("read start time of process %d: %d fields: %w", pid, len(f), cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return strconv.ParseInt(f[19], 10, 64)
}

// Ended reports whether a file could not be read because its process or cgroup has ended: its name
// is gone, or it was looked up just before (ESRCH in /proc, ENODEV in a cgroup).
func Ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENODEV)
}

func proc(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
