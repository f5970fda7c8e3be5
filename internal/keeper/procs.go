package keeper

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// endTime is how long killed processes have to end. One that is in a call to a driver ends
	// after the call.
	endTime = 5 * time.Second
	// pollTime is the time between two checks of what is about to end.
	pollTime = 50 * time.Millisecond
	// maxAncestors bounds the way up from a process.
	maxAncestors = 64
)

// slotProcs finds the processes of a slot by the cgroups of its slice, which no process of the
// slot can leave.
type slotProcs struct {
	root  string // where cgroups are mounted
	proc  string // "/proc"
	slice string // of the slot, below root
	agent string // the cgroup of the agent's unit, below root
	uid   int    // of the slot's user, 0 if unknown
	// send signals one process; nil sends a real signal.
	send func(pid int, sig unix.Signal) error
}

func newSlotProcs(cgroupRoot string, p plan.JobPolicy) slotProcs {
	slice := plan.SliceCgroup(p.Slice)
	return slotProcs{root: cgroupRoot, proc: "/proc", slice: slice, agent: filepath.Join(slice, plan.AgentUnit(p.Slot))}
}

// cgroupOf returns the cgroup of a process below the root, "" if it has ended.
func (s slotProcs) cgroupOf(pid int) string {
	text, err := os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	_, path, _ := strings.Cut(strings.TrimSpace(string(text)), "0::/") // version 2 has only this line
	return path
}

// owns reports whether a process is the slot's.
func (s slotProcs) owns(pid int) bool { return strings.HasPrefix(s.cgroupOf(pid)+"/", s.slice+"/") }

// name returns what a process calls itself, "" if it has ended. A job may have chosen it.
func (s slotProcs) name(pid int) string {
	comm, err := os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return text.Line(string(comm), 40)
}

// above returns a function that reports whether a process is pid, which is in the agent's unit,
// or an ancestor: the agent, and what runs the job between the two.
func (s slotProcs) above(pid int) (keep func(pid int) bool, err error) {
	if s.cgroupOf(pid) != s.agent {
		return nil, &CallerError{"only the slot's own agent may do this"}
	}
	var line []int
	for range maxAncestors {
		if pid <= 1 {
			return func(pid int) bool { return slices.Contains(line, pid) }, nil
		}
		line = append(line, pid)
		pid = s.parent(pid)
	}
	return nil, &CallerError{"the caller has too many ancestor processes"}
}

// ofRoot reports whether a process is kbnode's own or systemd's. No process of the slot's user
// becomes root in the agent's unit: its NoNewPrivileges= prevents that.
func (s slotProcs) ofRoot(pid int) bool {
	uids := s.uids(pid)
	return len(uids) > 0 && !slices.ContainsFunc(uids, func(uid int) bool { return uid != 0 })
}

// below reports whether a process is the agent or descends from it. A process that outlives the
// one that runs its job does not: init is its parent then.
func (s slotProcs) below(agent, pid int) bool {
	for range maxAncestors {
		if pid == agent {
			return true
		}
		if pid <= 1 {
			return false
		}
		pid = s.parent(pid)
	}
	return false
}

// runsJob reports whether the agent has a child process: it runs each job in one.
func (s slotProcs) runsJob(agent int) (bool, error) {
	list, err := s.within(nil)
	return slices.ContainsFunc(list, func(pid int) bool { return s.parent(pid) == agent }), err
}

func (s slotProcs) parent(pid int) int {
	ppid, _ := strconv.Atoi(s.status(pid, "PPid:"))
	return ppid
}

// within returns the processes of the agent's unit except those to keep; nil keeps none.
func (s slotProcs) within(keep func(pid int) bool) ([]int, error) {
	list, err := s.members(filepath.Join(s.root, s.agent))
	if keep != nil {
		list = slices.DeleteFunc(list, keep)
	}
	return list, err
}

// beside returns the slot's processes outside the agent's unit.
func (s slotProcs) beside() ([]int, error) {
	var found []int
	err := filepath.WalkDir(filepath.Join(s.root, s.slice), func(dir string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreAbsent(err)
		}
		if dir == filepath.Join(s.root, s.agent) {
			return filepath.SkipDir
		}
		list, err := s.members(dir)
		found = append(found, list...)
		return err
	})
	return found, err
}

func (s slotProcs) members(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err = ignoreAbsent(err); err != nil {
		return nil, fmt.Errorf("list the slot's processes: %w", err)
	}
	var list []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("list the slot's processes: %w", err)
		}
		list = append(list, pid)
	}
	return list, nil
}

// endWithin kills all processes of the agent's unit except those to keep. A process that forks
// would outrun that, so the whole unit is frozen meanwhile.
func (s slotProcs) endWithin(ctx context.Context, keep func(pid int) bool) (ended int, err error) {
	strays := func() ([]int, error) { return s.within(keep) }
	if list, err := strays(); err != nil || len(list) == 0 {
		return 0, err
	}
	agent := filepath.Join(s.root, s.agent)
	err = s.freeze(ctx, agent)
	list, listErr := strays()
	for _, pid := range list {
		err = errors.Join(err, s.signal(pid, unix.SIGKILL, s.owns))
	}
	if err = errors.Join(err, listErr, s.thaw()); err != nil {
		return len(list), fmt.Errorf("kill what the job left: %w", err)
	}
	// Wait only for the processes in list: nothing forked meanwhile, and when a job's command is
	// ended, its hooks begin.
	return len(list), s.gone(ctx, func() ([]int, error) {
		now, err := strays()
		return slices.DeleteFunc(now, func(pid int) bool { return !slices.Contains(list, pid) }), err
	}, s.owns)
}

// endBeside kills everything that the slot runs outside the agent's unit.
func (s slotProcs) endBeside(ctx context.Context) (ended int, err error) {
	list, err := s.beside()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	children, err := os.ReadDir(filepath.Join(s.root, s.slice))
	if err != nil {
		return 0, fmt.Errorf("kill what the job left: %w", err)
	}
	for _, c := range children {
		if dir := filepath.Join(s.root, s.slice, c.Name()); c.IsDir() && dir != filepath.Join(s.root, s.agent) {
			err = errors.Join(err, writeControl(dir, "cgroup.kill", "1")) // Linux 5.14
		}
	}
	if err != nil {
		return len(list), fmt.Errorf("kill what the job left: %w", err)
	}
	return len(list), s.gone(ctx, s.beside, s.owns)
}

// gone kills what is listed, and still what it was taken for, until nothing is left.
func (s slotProcs) gone(ctx context.Context, list func() ([]int, error), still func(pid int) bool) error {
	deadline := time.Now().Add(endTime)
	for {
		left, err := list()
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d (%s) of a job still runs after SIGKILL; if a driver holds it, only a reboot frees it", left[0], s.name(left[0]))
		}
		for _, pid := range left {
			if err := s.signal(pid, unix.SIGKILL, still); err != nil {
				return err
			}
		}
		if err := limit.Sleep(ctx, pollTime); err != nil {
			return err
		}
	}
}

// freeze freezes the agent's unit. It returns when that has happened, or after a second: a
// process that is held in the kernel is not stopped, and does not fork.
func (s slotProcs) freeze(ctx context.Context, dir string) error {
	if err := writeControl(dir, "cgroup.freeze", "1"); err != nil {
		return err
	}
	for range int(time.Second / pollTime) {
		events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if err != nil || strings.Contains(string(events), "frozen 1") {
			return ignoreAbsent(err)
		}
		if err := limit.Sleep(ctx, pollTime); err != nil {
			return err
		}
	}
	return nil
}

// thaw continues the agent's unit. A guard that was killed may have left it frozen.
func (s slotProcs) thaw() error {
	return writeControl(filepath.Join(s.root, s.agent), "cgroup.freeze", "0")
}

func writeControl(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	return ignoreAbsent(err)
}
