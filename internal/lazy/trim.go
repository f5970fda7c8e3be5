package lazy

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim gives back the pages of kbnode's own file that were needed once: for the start, or for
// one stage of a job. They belong to the page cache, one copy for all guards, but the kernel
// counts them for each process that has mapped them: most of what a guard, or the daemon, seems
// to use. A page that is needed again comes back when it is touched.
func Trim() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	defer func() { _ = maps.Close() }()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// 00400000-00c3f000 r-xp 00000000 fe:00 1234   /usr/local/bin/kbnode
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || strings.Join(fields[5:], " ") != self || strings.Contains(fields[1], "w") {
			continue // what was written to the pages would be lost
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("trim: %w", err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("trim: %w", errno)
		}
	}
	return lines.Err()
}
