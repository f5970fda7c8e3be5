package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// needRoot returns an error unless the user is root.
func needRoot(command string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s changes the system and must run as root; type sudo kbnode %s", command, command)
	}
	return nil
}

// openHost returns this machine, ready to be changed, and a function that closes it.
func openHost(ctx context.Context, s Streams) (*reconcile.Host, func(), error) {
	bus, err := reconcile.Connect(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("systemd does not run or does not answer; run kbnode on the host, not in a container: %w", err)
	}
	return &reconcile.Host{Root: "/", Systemd: bus, Users: reconcile.SystemUsers{Root: "/"}, Network: openNetwork(), Log: s.logger()}, bus.Close, nil
}

// rootHost is openHost for a command that needs root.
func rootHost(ctx context.Context, s Streams, command string) (*reconcile.Host, func(), error) {
	if err := needRoot(command); err != nil {
		return nil, nil, err
	}
	return openHost(ctx, s)
}

// lockTime is how long a command waits for another one. A pass of the daemon takes seconds, or a
// minute if a slow driver is asked to change all GPUs. An uninstall that waits for jobs may take
// an hour.
const lockTime = 2 * time.Minute

func lock(ctx context.Context, s Streams, host *reconcile.Host) (release func(), err error) {
	told := false
	for deadline := time.Now().Add(lockTime); ; {
		release, err := host.Lock()
		var locked *reconcile.LockedError
		if !errors.As(err, &locked) || time.Now().After(deadline) {
			return release, err
		}
		if !told {
			s.progress("waiting for another kbnode (pid %s)", locked.PID)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
