package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stopLimit    = 30 * time.Second
	stopAgain    = 500 * time.Millisecond
	shortestLook = 100 * time.Microsecond // between two looks at a group that is to stop
	longestLook  = 5 * time.Millisecond
)

// stopGroup stops all processes of a group, and returns when each thread has stopped. One can go on by itself: the kernel
// sends SIGCONT for a timer that asks for it. Look twice to see that none did.
func stopGroup(group int) error {
	for deadline := time.Now().Add(stopLimit); time.Now().Before(deadline); {
		if err := unix.Kill(-group, unix.SIGSTOP); err != nil {
			return fmt.Errorf("stop worker: %w", err)
		}
		pause := shortestLook
		for again := time.Now().Add(stopAgain); time.Now().Before(again); pause = min(2*pause, longestLook) {
			if takeSnapshot(group).stopped() {
				return nil
			}
			// Go's own sleep takes a millisecond at least.
			t := unix.NsecToTimespec(int64(pause))
			_ = unix.Nanosleep(&t, nil)
		}
		// One that has just forked stops when its child has executed a program, and the child stops, too (vfork(2)).
		if err := unix.Kill(-group, unix.SIGCONT); err != nil {
			return fmt.Errorf("continue worker: %w", err)
		}
		time.Sleep(longestLook)
	}
	return fmt.Errorf("stop worker: it runs %s after SIGSTOP", stopLimit)
}

// snapshot has the threads of groups by ID. It is nil if they could not be listed.
type snapshot map[uint32]thread

// thread is what proc_pid_status(5) says of one: its state, X if it is gone, and how often it left a processor, which it
// does when it stops.
type thread struct {
	state    byte
	switches string
}

func (t thread) ended() bool { return t.state == 'Z' || t.state == 'X' }

func takeSnapshot(groups ...int) snapshot {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	s := snapshot{}
	for _, d := range names {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if id, err := unix.Getpgid(pid); err != nil || !slices.Contains(groups, id) {
			continue
		}
		threads, _ := tasks(d.Name()) // none: it has ended
		for _, tid := range threads {
			s[tid] = threadOf(pid, tid)
		}
	}
	return s
}

func threadOf(pid int, tid uint32) thread {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.FormatUint(uint64(tid), 10), "status"))
	_, rest, ok := bytes.Cut(status, []byte("\nState:\t")) // no name has a line break here
	if err != nil || !ok || len(rest) == 0 {
		return thread{state: 'X'}
	}
	_, switches, _ := bytes.Cut(rest, []byte("\nvoluntary_ctxt_switches:"))
	return thread{rest[0], string(switches)}
}

// stopped reports whether no thread runs.
func (s snapshot) stopped() bool {
	for _, t := range s {
		if strings.IndexByte("RSDI", t.state) >= 0 {
			return false
		}
	}
	return s != nil
}

// same reports whether no thread ran since an earlier snapshot, of two at which all had stopped. What had ended then may be gone.
func (s snapshot) same(earlier snapshot) bool {
	for tid, t := range s {
		if was, ok := earlier[tid]; !ok || was.ended() != t.ended() || !t.ended() && was != t {
			return false
		}
	}
	for tid, was := range earlier {
		if _, ok := s[tid]; !ok && !was.ended() {
			return false
		}
	}
	return earlier != nil
}
