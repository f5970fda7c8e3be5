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

	"golang.org/x/sys/unix"
)

// outside returns the processes of the slot's user in none of kbnode's slices: a user manager,
// or what a system service started for the user. The slot's limits do not hold them. A container
// that is not kbnode's may use the same number for its own user, so processes in another PID
// namespace count only in the user's slice.
func (s slotProcs) outside() ([]int, error) {
	if s.uid <= 0 {
		return nil, nil // the user is not known
	}
	entries, err := os.ReadDir(s.proc)
	if err != nil {
		return nil, fmt.Errorf("list the slot's processes: %w", err)
	}
	var found []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && s.isOutside(pid) {
			found = append(found, pid)
		}
	}
	return found, nil
}

func (s slotProcs) isOutside(pid int) bool {
	if s.uid <= 0 || !slices.Contains(s.uids(pid), s.uid) {
		return false
	}
	cgroup := s.cgroupOf(pid)
	parent, _, _ := strings.Cut(s.slice, "/")
	if cgroup == "" || strings.HasPrefix(cgroup+"/", parent+"/") {
		return false
	}
	if strings.HasPrefix(cgroup+"/", fmt.Sprintf("user.slice/user-%d.slice/", s.uid)) {
		return true
	}
	ours, err1 := os.Readlink(filepath.Join(s.proc, "self/ns/pid"))
	its, err2 := os.Readlink(filepath.Join(s.proc, strconv.Itoa(pid), "ns/pid"))
	return err1 == nil && err2 == nil && ours == its
}

// uids returns the real, effective, saved and file system user IDs of a process.
func (s slotProcs) uids(pid int) (uids []int) {
	for field := range strings.FieldsSeq(s.status(pid, "Uid:")) {
		if uid, err := strconv.Atoi(field); err == nil {
			uids = append(uids, uid)
		}
	}
	return uids
}

// status returns a line of a process's status without its name, "" if the process has ended.
func (s slotProcs) status(pid int, name string) string {
	text, err := os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// endOutside kills the processes that outside returns.
func (s slotProcs) endOutside(ctx context.Context) (ended int, err error) {
	list, err := s.outside()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return len(list), s.gone(ctx, s.outside, s.isOutside)
}

// signal sends a signal to a process that is still what it was taken for: PIDs are reused.
func (s slotProcs) signal(pid int, sig unix.Signal, still func(pid int) bool) error {
	if s.send != nil {
		return s.send(pid, sig)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !still(pid) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// ignoreAbsent ignores that a file or cgroup is gone: such a cgroup has no processes.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
