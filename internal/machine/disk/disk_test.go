package disk

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

func testDisk(t *testing.T, bytes int64) Disk {
	t.Helper()
	d := Disk{Dir: t.TempDir(), Home: filepath.Join(t.TempDir(), "home"), Bytes: bytes, GID: 4242, Log: slog.New(slog.DiscardHandler)}
	must.Do(t, os.Mkdir(d.Home, 0o700))
	return d
}

// A disk that does not fit takes no space, nor does what an earlier try left, and it is
// not tried again at once.
func TestDiskThatDoesNotFit(t *testing.T) {
	t.Parallel()
	d := testDisk(t, 1<<60)
	must.Do(t, os.WriteFile(d.image(), make([]byte, 1<<20), 0o600))
	err := d.Ensure(t.Context())
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "job.disk") || !strings.Contains(err.Error(), "MiB are free") {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Lstat(d.image()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an image is left: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.Ensure(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the next try: %v", err)
	}
	long := time.Now().Add(-time.Hour)
	must.Do(t, os.Chtimes(d.failed(), long, long))
	if err := d.Ensure(ctx); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a try much later: %v", err)
	}
}

// If something fails after the space was set aside, none of it is left.
func TestNoPartIsLeft(t *testing.T) {
	t.Parallel()
	d := testDisk(t, 64<<10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // mkfs is not even started
	if err := d.Ensure(ctx); err == nil {
		t.Error("no error")
	}
	if _, err := os.Lstat(d.image()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an image is left: %v", err)
	}
}

// A disk is mounted twice, without device nodes and set-user-ID programs. It stays as it
// is while it has its size, and is empty when it had to be made again.
func TestEnsure(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and loop devices")
	}
	d := testDisk(t, 8<<20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the mounts end with the thread
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Log("skipped: ", err)
			return
		}
		defer func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := d.Ensure(t.Context()); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
			t.Log("skipped: ", err)
			return
		} else if err != nil {
			t.Error(err)
			return
		}
		mark := filepath.Join(d.Home, "builds/a")
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			t.Error(err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(d.Home, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
			t.Errorf("flags %#x, %v", st.Flags, err)
		}
		if err := d.Ensure(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(mark); err != nil {
			t.Errorf("a disk that is right was made again: %v", err)
		}
		size := d.Bytes
		for _, used := range []string{mark, filepath.Join(d.mount(), "home/builds/a"), d.mount()} {
			open, err := os.Open(used)
			if err != nil {
				t.Error(err)
				return
			}
			for _, d.Bytes = range []int64{2 * size, size} {
				if err := d.Ensure(t.Context()); err != nil {
					t.Error(err)
				}
				if info, err := os.Stat(d.image()); err != nil || info.Size() != size {
					t.Errorf("a disk in use was replaced: %v", err)
				}
				if err := unix.Statfs(d.Home, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
					t.Errorf("with %s in use: flags %#x, %v", used, st.Flags, err)
				}
				if _, err := os.Stat(mark); err != nil {
					t.Errorf("with %s in use: %v", used, err)
				}
			}
			if used == d.mount() { // a kbnode that was killed left only this
				if err := errors.Join(unix.Unmount(d.Home, 0), d.Ensure(t.Context())); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(mark); err != nil {
					t.Error(err)
				}
			}
			if err := open.Close(); err != nil {
				t.Error(err)
			}
		}
		d.Bytes = 2 * size
		if err := d.Ensure(t.Context()); err != nil {
			t.Error(err)
		}
		info, err := os.Stat(d.image())
		if _, old := os.Stat(mark); err != nil || info.Size() != d.Bytes || !errors.Is(old, os.ErrNotExist) {
			t.Errorf("size %v, mark %v", err, old)
		}
	}()
	<-done
}
