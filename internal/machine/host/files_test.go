package host

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

func tree(t *testing.T, files map[string]string) Tree {
	t.Helper()
	root := Tree{t.TempDir()}
	for name, text := range files {
		must.Write(t, root.Root, name, text)
	}
	return root
}

func TestMounts(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"/proc/7/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" +
		"23 22 7:0 / /a\\040b ro,nosuid - ext4 /dev/loop0 rw\n24 22 7:1 / /c rw - xfs /dev/loop1 errors=ro-mount,ro\n25 22 7:2 / /d rw - ext4 /dev/loop2 rw,errors=remount-ro\ngarbage - \n"})
	want := []Mount{
		{"/", "8:1", "/", "rw,relatime", "ext4", false}, {"/a b", "7:0", "/", "ro,nosuid", "ext4", true},
		{"/c", "7:1", "/", "rw", "xfs", true}, {"/d", "7:2", "/", "rw", "ext4", false},
	}
	got, ok := root.Mounts("7")
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Error(ok, diff)
	}
	for path, want := range map[string]string{"/": "8:1", "/a bc": "8:1", "/c": "7:1", "/d/e": "7:2"} {
		if at := MountOf(got, path); at.Device != want {
			t.Errorf("%s is on %+v, want %s", path, at, want)
		}
	}
	if _, ok := root.Mounts("8"); ok {
		t.Error("a process that has ended has mounts")
	}
}

// TestList tests that names are absolute and without the root.
func TestList(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"/a/1.conf": "", "/a/2.conf": "", "/a/3": ""})
	must.Equal(t, []string{"/a/1.conf", "/a/2.conf"}, root.List("/a/*.conf"))
	if got := (Tree{"/"}).List("/proc/self"); len(got) != 1 || got[0] != "/proc/self" {
		t.Error(got)
	}
}

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
