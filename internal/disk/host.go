package disk

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnHost runs f in the host's mount namespace, which the Docker engine and the agents
// use: a unit with a sandbox has its own, and mounts made there stay there. f must not
// start goroutines that open files.
func OnHost(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with this goroutine, because it is not unlocked.
		runtime.LockOSThread()
		done <- func() error {
			host, err := os.Open("/proc/1/ns/mnt")
			if err != nil {
				return err
			}
			defer func() { _ = host.Close() }()
			// Threads share a root and a current directory, which setns changes.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("separate from other threads: %w", err)
			}
			if err := unix.Setns(int(host.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the host's mount namespace: %w", err)
			}
			return f()
		}()
	}()
	return <-done
}
