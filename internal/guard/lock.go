package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
)

// Who holds a slot.
const (
	holderAgent = "agent" // a job of the agent's
	holderRoot  = "root"  // one of root's, which ends for each other holder
	holderClear = "clear" // clearing, before the agent starts
)

const (
	// handover is how long a job that is over, or root's, may take to end before the next one.
	handover = 2 * time.Minute
	// killTime is how long it may take after SIGKILL.
	killTime = 5 * time.Second
	// lockPoll is the time between two tries.
	lockPoll = 50 * time.Millisecond
)

// errBusy means that the slot is not free for a job of root's.
var errBusy = errors.New("the slot has a job, which goes first")

// hold makes this process the only one that may change what the slot runs, until it calls release or ends, however it
// ends: the kernel then releases the lock. It waits for the holder before, ends a job of root's, and kills
// one that takes too long. Root's own waits for no one.
func (g *guard) hold(ctx context.Context, who string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(g.runDir(), lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold the slot: %w", err)
	}
	defer func() {
		if err != nil {
			hangUp(f)
		}
	}()
	before, asked, killed := "", "", ""
	var late time.Time
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("hold the slot: %w", err)
		}
		name, pid := g.holder()
		if late.IsZero() || pid != before { // each holder has its time
			before, late = pid, time.Now().Add(g.handover)
		}
		switch {
		case who == holderRoot:
			return nil, errBusy
		case time.Now().After(late.Add(killTime)):
			return nil, fmt.Errorf("process %s still holds the slot after SIGKILL; if a driver holds it, only a reboot frees it", pid)
		case time.Now().After(late) && killed != pid: // its client waits no longer
			killed = pid
			g.signal(pid, unix.SIGKILL)
		case name == holderRoot && asked != pid:
			asked = pid
			g.signal(pid, unix.SIGTERM)
		}
		if err := limit.Sleep(ctx, lockPoll); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%s %d", who, os.Getpid()))); err != nil {
		return nil, fmt.Errorf("hold the slot: %w", err)
	}
	return func() { hangUp(f) }, nil
}

// lockName is the file in the slot's run directory that its holder locks, with who that is, or was.
const lockName = "lock"

func (g *guard) holder() (who, pid string) {
	text, _ := os.ReadFile(filepath.Join(g.runDir(), lockName))
	who, pid, _ = strings.Cut(string(text), " ")
	return who, pid
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
