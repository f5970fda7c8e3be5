package disk

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// EnsureSlot makes and mounts the disk of a slot on the host, if the slot's policy has one.
func EnsureSlot(ctx context.Context, k int, log *slog.Logger) error {
	pol, err := slot.ReadPolicy("/", k)
	if err != nil || pol.DiskBytes == 0 {
		return err
	}
	_, gid, err := slot.LookupUser(pol.User)
	if err != nil {
		return err
	}
	d := Disk{Dir: plan.DiskDir(k), Home: plan.WorkDir(k), Bytes: pol.DiskBytes, GID: gid, Log: log}
	return OnHost(func() error { return d.Ensure(ctx) })
}

// OnHost runs f in the host's mount namespace, which the Docker engine and the agents
// use: a unit with a sandbox has its own, and mounts made there stay there. f must not
// start goroutines that open files.
func OnHost(f func() error) error { return InNamespace("/proc/1", f) }

// InNamespace runs f in the mount namespace of a process, given as its directory of /proc, as OnHost does. Its
// root is the namespace's, whatever the process has chosen with chroot.
func InNamespace(proc string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with this goroutine, because it is not unlocked.
		runtime.LockOSThread()
		done <- func() error {
			mounts, err := os.Open(proc + "/ns/mnt")
			if err != nil {
				return err
			}
			defer func() { _ = mounts.Close() }()
			// Threads share a root and a current directory, which setns changes.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("separate from other threads: %w", err)
			}
			if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the mount namespace of %s: %w", proc, err)
			}
			return f()
		}()
	}()
	return <-done
}
