package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// endTime is how long killed processes have to end. One that is in a call to a driver ends
	// after the call.
	endTime = 5 * time.Second
	// pollTime is the time between two checks of what is about to end.
	pollTime = 50 * time.Millisecond
)

// slotProcs finds the processes of a slot by the cgroups of its slice, which no process of the
// slot can leave.
type slotProcs struct {
	root  string                    // where cgroups are mounted
	proc  string                    // "/proc"
	slice string                    // of the slot, below root
	agent string                    // the cgroup of the agent's unit, below root
	kill  func(cgroup string) error // ends all processes of a cgroup
}

func newSlotProcs(cgroupRoot string, p plan.JobPolicy) slotProcs {
	slice := plan.SliceCgroup(p.Slice)
	return slotProcs{root: cgroupRoot, proc: "/proc", slice: slice, agent: filepath.Join(slice, plan.AgentUnit(p.Slot)), kill: killCgroup}
}

// cgroupOf returns the cgroup of a process below the root, "" if it has ended.
func (s slotProcs) cgroupOf(pid int) string { return strings.TrimPrefix(s.tree().Cgroup(pid), "/") }

func (s slotProcs) tree() host.Tree { return host.Tree{Root: filepath.Dir(s.proc)} }

// owns reports whether a process is the slot's.
func (s slotProcs) owns(pid int) bool { return strings.HasPrefix(s.cgroupOf(pid)+"/", s.slice+"/") }

// name returns what a process calls itself, "" if it has ended. A job may have chosen it.
func (s slotProcs) name(pid int) string { return s.tree().Process(pid).Name }

// runsJob reports whether the agent's unit has a process besides the agent: it runs each job in one.
func (s slotProcs) runsJob() (bool, error) {
	list, err := s.members(filepath.Join(s.root, s.agent))
	return len(list) > 1, err
}

// outsideAgent returns the slot's processes outside the agent's unit.
func (s slotProcs) outsideAgent() ([]int, error) {
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

// endBeside kills everything that the slot runs outside the agent's unit, and waits until it has ended.
func (s slotProcs) endBeside(ctx context.Context) (ended int, err error) {
	deadline := time.Now().Add(endTime)
	for {
		left, err := s.outsideAgent()
		if err != nil || len(left) == 0 {
			return ended, err
		}
		ended = max(ended, len(left))
		if time.Now().After(deadline) {
			return ended, fmt.Errorf("process %d (%s) of a job still runs after SIGKILL; if a driver holds it, only a reboot frees it", left[0], s.name(left[0]))
		}
		if err := s.killBeside(); err != nil {
			return ended, fmt.Errorf("kill what the job left: %w", err)
		}
		if err := limit.Sleep(ctx, pollTime); err != nil {
			return ended, err
		}
	}
}

// killBeside kills whole cgroups, which no process can outrun by forking.
func (s slotProcs) killBeside() error {
	children, err := os.ReadDir(filepath.Join(s.root, s.slice))
	err = ignoreAbsent(err)
	for _, c := range children {
		if dir := filepath.Join(s.root, s.slice, c.Name()); c.IsDir() && dir != filepath.Join(s.root, s.agent) {
			err = errors.Join(err, s.kill(dir))
		}
	}
	return err
}

// freeing removes a container that the engine could not remove. The engine starts a container by reading files of
// it as root, and holds a lock on it meanwhile: forever if a job has put a terminal or a pipe in their place. The
// process that reads runs in the slot's slice.
func (s slotProcs) freeing(remove func() error) error {
	return errors.Join(s.killBeside(), remove())
}

func killCgroup(dir string) error { return writeCgroup(filepath.Join(dir, "cgroup.kill")) }

// container returns the cgroup of one of the slot's containers.
func (s slotProcs) container(id string) string {
	return filepath.Join(s.root, s.slice, "docker-"+id+".scope")
}

// writeCgroup writes 1 to a file of a cgroup, unless the cgroup is gone.
func writeCgroup(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("1")
		err = errors.Join(err, f.Close())
	}
	return ignoreAbsent(err)
}

// ignoreAbsent ignores that a file or cgroup is gone: such a cgroup has no processes.
func ignoreAbsent(err error) error {
	if host.Ended(err) {
		return nil
	}
	return err
}

// maxPtys is how many terminals the programs of a container may make. The kernel counts them for
// the whole machine, and charges the slot for only a part of them.
const maxPtys = 256

// limitPtys bounds the terminals of a container that was just started: Docker has no option for
// it. A container that has ended is not an error.
func (s slotProcs) limitPtys(id string) error {
	for late := time.Now().Add(time.Second); ; time.Sleep(pollTime) {
		pids, err := s.members(s.container(id))
		for _, pid := range pids {
			if err = remountPts(filepath.Join(s.proc, strconv.Itoa(pid)), maxPtys); !host.Ended(err) {
				return err
			}
		}
		if len(pids) == 0 || time.Now().After(late) { // one that ends is listed a little longer
			return err
		}
	}
}

// remountPts sets the maximum number of terminals of the /dev/pts in the mount namespace of a process,
// which is a separate file system in each container, and gives it Docker's options again.
func remountPts(proc string, most int) error {
	var pts int
	err := disk.InNamespace(proc, func() (err error) {
		pts, err = unix.Open("/dev/pts", unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pts) }()
	var own, host unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(pts, &own), unix.Fstatfs(pts, &fs)); err != nil {
		return err
	}
	if err := unix.Stat("/dev/pts", &host); fs.Type != unix.DEVPTS_SUPER_MAGIC || err == nil && own.Dev == host.Dev {
		return errors.New("/dev/pts is not the container's own")
	}
	fd, err := unix.Fspick(pts, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for key, value := range map[string]string{"gid": "5", "mode": "0620", "ptmxmode": "0666", "max": strconv.Itoa(most)} {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	return unix.FsconfigReconfigure(fd)
}
