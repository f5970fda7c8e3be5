package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endLimit is how long processes may take to die after SIGKILL. One that takes longer
// hangs in the kernel, as with a GPU driver that has stopped.
const endLimit = 10 * time.Second

// adopt makes this process the parent of every orphan among its descendants, so that
// none escapes, and hides its own memory and environment from them. They do not inherit
// the files that this process was started with either.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	if err := closeOnExec(); err != nil {
		return err
	}
	openScore()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide own memory: %w", err)
	}
	return nil
}

// closeOnExec keeps children from inheriting any but the standard files. Call it before
// hiding: an unprivileged process that hides cannot list its files.
func closeOnExec() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open files: %w", err)
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// killGroup sends SIGKILL to every process of a program's group. No process can fork its way out: the
// kernel signals all of a group at once, and a fork with a fatal signal pending fails.
func killGroup(group int) {
	_ = unix.Kill(-group, unix.SIGKILL) // an error means that none is left, or that the caller sees what is
}

// endTree kills and reaps every descendant. A process that double-forks falls to the
// subreaper, so a process with no child left has no descendant left. The usual case,
// none, costs one system call.
func endTree() error {
	deadline := time.Now().Add(endLimit)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("reap processes: %w", err)
			}
			if err == nil && pid == 0 {
				break
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end processes: some are alive %s after SIGKILL: %v", endLimit, descendants())
		}
		// A process may fork in the meantime, so this repeats until none is left.
		for _, pid := range descendants() {
			_ = unix.Kill(pid, unix.SIGKILL) // an error means that it ended, or that the caller sees what is left
		}
		time.Sleep(pause)
	}
}

// descendants lists the processes below this one, parents before children.
func descendants() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close() //nolint:errcheck // opened for reading
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	list := children[os.Getpid()]
	for i := 0; i < len(list); i++ {
		list = append(list, children[list[i]]...)
	}
	return list
}

// parentOf reads the parent's ID from /proc/PID/stat: "PID (NAME) STATE PPID …", where
// NAME may contain anything.
func parentOf(pid int) (int, bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}
