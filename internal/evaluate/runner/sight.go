package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
)

const (
	// maxMarks bounds what is kept of one program; later marks replace the last one.
	maxMarks = 4096
	// lookShare is the least time between two looks at the processes, in times that a look takes, and lookPause is
	// the least in all: a program may report without a pause, and a look must not disturb it.
	lookShare = 20
	lookPause = time.Millisecond
	// clockTick is the unit of times in /proc/PID/stat (proc(5)).
	clockTick = 10 * time.Millisecond
)

// sight is what the runner sees of a program from outside. The program cannot write to it.
type sight struct {
	start time.Time     // zero if no one looks
	cpu   time.Duration // of earlier programs
	marks []witness.Mark
	next  time.Time // of the next look at the processes
	busy  time.Duration
}

// begin is called just before the program starts.
func (s *sight) begin() {
	s.start, s.cpu = time.Now(), reapedTime()
}

// mark records that so many bytes of the report of a program have arrived, which leads its session.
func (s *sight) mark(bytes, leader int) {
	if s.start.IsZero() {
		return
	}
	now := time.Now()
	if !now.Before(s.next) {
		for range 2 { // a process that ends meanwhile is not counted
			s.busy = max(s.busy, sessionTime(leader)-s.cpu)
		}
		took := time.Since(now)
		s.next = now.Add(max(lookPause, lookShare*took))
	}
	if len(s.marks) == maxMarks {
		s.marks = s.marks[:maxMarks-1]
	}
	s.marks = append(s.marks, witness.Mark{Bytes: bytes, At: now.Sub(s.start), CPU: s.busy})
}

// end returns the last mark. All processes must be dead and reaped.
func (s *sight) end(bytes int) witness.Mark {
	return witness.Mark{Bytes: bytes, At: time.Since(s.start), CPU: max(s.busy, reapedTime()-s.cpu)}
}

// reapedTime is the CPU time of all processes that this one has reaped, and of those that these have.
func reapedTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sessionTime is the CPU time of a program's processes, with those that have ended. No program leaves its session
// (programFilter). A cgroup has one number for it, but it also counts the runner, and on a machine without
// containers whatever else runs there.
func sessionTime(leader int) time.Duration {
	sum := reapedTime()
	proc, err := os.Open("/proc")
	if err != nil {
		return sum
	}
	defer proc.Close() //nolint:errcheck // opened for reading
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if id, err := unix.Getsid(pid); err == nil && id == leader {
				sum += processTime(pid)
			}
		}
	}
	return sum
}

// processTime is the CPU time of a process, and of those that it has reaped; 0 if it is gone.
func processTime(pid int) time.Duration {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// From the process's state on, which is field 3 of proc(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 15 {
		return 0
	}
	ticks := func(field int) time.Duration {
		n, _ := strconv.ParseInt(fields[field-3], 10, 64) // the kernel's
		return time.Duration(n) * clockTick
	}
	own := ticks(14) + ticks(15)
	// The clock of a process (clock_getcpuclockid(3)) counts in nanoseconds; one that has ended has none.
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|2), &t) == nil {
		own = max(own, time.Duration(t.Nano()))
	}
	return own + ticks(16) + ticks(17)
}

// clock says what the evaluations run on. A GPU is timed where there is one and the task's own files, beside the
// submission, name its API.
func (e *engine) clock() witness.Job {
	j := witness.Job{Python: e.lang == "py", Apart: e.asksForWorkers()}
	if e.runtime == "" {
		return j
	}
	j.GPUs = max(1, e.gpus)
	j.OnGPU = e.lang == "cu" || slices.ContainsFunc(e.sources, func(f result.Pair[string]) bool {
		return f.Key != preRunProgram && strings.Contains(f.Value, ".cuda.")
	})
	return j
}
