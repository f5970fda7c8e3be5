package host

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestEnded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&fs.PathError{Op: "open", Path: "/proc/9/environ", Err: syscall.ENOENT}, true},
		{&fs.PathError{Op: "open", Path: "/proc/9/environ", Err: syscall.ESRCH}, true},
		{fmt.Errorf("read environment: %w", &fs.PathError{Op: "read", Path: "/proc/9/environ", Err: syscall.ESRCH}), true},
		{&fs.PathError{Op: "read", Path: "/sys/fs/cgroup/x/cgroup.procs", Err: syscall.ENODEV}, true},
		{&fs.PathError{Op: "open", Path: "/proc/9/environ", Err: syscall.EACCES}, false},
		{&fs.PathError{Op: "read", Path: "/proc/9/environ", Err: syscall.EIO}, false},
		{errors.New("no such process"), false},
	} {
		if got := Ended(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}
