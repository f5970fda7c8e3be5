package runner

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fence keeps the children of this thread from looking into the processes above
// this one, whose environment holds the payload: a Landlock domain, from inside
// of which /proc/PID of a process outside is closed (landlock(7), "Ptrace
// restrictions"), also for root with every capability. It needs no privilege,
// but then programs gain none. It says whether it could: before Linux 5.19 a domain
// also forbade to rename a file into another directory, as compilers' caches do.
func fence() bool {
	const refer = unix.LANDLOCK_ACCESS_FS_REFER
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < 2 || unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != nil {
		return false
	}
	// A domain restricts something: here, what is then allowed everywhere.
	rules := unix.LandlockRulesetAttr{Handled_access_fs: refer}
	const firstVersion = 8                                                                                           // bytes of the struct that the oldest kernel knows
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), firstVersion, 0) //nolint:gosec // an argument of the kernel
	if errno != 0 {
		return false
	}
	defer unix.Close(int(fd)) //nolint:errcheck // nothing was written
	root, err := os.Open("/")
	if err != nil {
		return false
	}
	defer root.Close() //nolint:errcheck // a directory
	everywhere := unix.LandlockPathBeneathAttr{Allowed_access: refer, Parent_fd: int32(root.Fd())}
	if _, _, errno = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&everywhere)), 0, 0, 0); errno != 0 { //nolint:gosec // likewise
		return false
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
	return errno == 0
}
