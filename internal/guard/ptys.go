package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPtys is how many terminals the programs of a container may make. The kernel counts them for
// the whole machine, and charges the slot for only a part of them.
const maxPtys = 256

// limitPtys bounds the terminals of a container that was just started: Docker has no option for
// it. A container that has ended is not an error.
func (s slotProcs) limitPtys(id string) error {
	pids, err := s.members(s.container(id))
	if err == nil && len(pids) > 0 {
		err = ignoreAbsent(remountPts("/proc/"+strconv.Itoa(pids[0]), maxPtys))
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// remountPts sets the maximum number of terminals of the /dev/pts that a process sees, which is
// a separate file system in each container, and keeps its other options.
func remountPts(proc string, most int) error {
	mounts, err := os.ReadFile(proc + "/mountinfo")
	if errors.Is(err, unix.EINVAL) { // it has ended, and no one has waited for it yet
		return unix.ESRCH
	}
	if err != nil {
		return err
	}
	options := ptsOptions(string(mounts))
	if options == nil {
		return errors.New("/dev/pts is not mounted")
	}
	const path = unix.O_PATH | unix.O_CLOEXEC
	pts, err := unix.Open(proc+"/root/dev/pts", path|unix.O_NOFOLLOW, 0)
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
	for _, option := range append(options, "max="+strconv.Itoa(most)) {
		key, value, _ := strings.Cut(option, "=")
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("set %s: %w", option, err)
		}
	}
	return unix.FsconfigReconfigure(fd)
}

// ptsOptions returns the options, other than max, of the last /dev/pts in a mountinfo; nil if
// there is none.
func ptsOptions(mountinfo string) (options []string) {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if n := len(f); n < 10 || f[4] != "/dev/pts" || f[n-3] != "devpts" {
			continue
		}
		options = []string{}
		for o := range strings.SplitSeq(f[len(f)-1], ",") {
			if key, _, valued := strings.Cut(o, "="); valued && key != "max" {
				options = append(options, o)
			}
		}
	}
	return options
}
