package vm

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/shirou/gopsutil/v3/cpu"
)

// paceLoop is a loop in the guest's shell, and paceTime how long it takes on an idle machine with two
// cores, the reference for every limit of the rig and of bkstub.
const (
	paceLoop = `for ((i = 0; i < 100000; i++)); do :; done`
	paceTime = 1800 * time.Millisecond
)

// A guest that is slower than the reference by slowest cannot keep the limits of kbnode and of the agent, which are the same
// everywhere. Beside other work, such as the linters in CI, it waits for the end of that.
const (
	slowest  = 4.5
	busyHost = 50 // percent of the host's CPUs
	calmTime = 20 * time.Minute
)

// calm measures a guest that is too slow again, until the host does no other work.
func (m *VM) calm(ctx context.Context) error {
	for began := time.Now(); m.slow > slowest && time.Since(began) < calmTime; {
		busy, err := cpu.PercentWithContext(ctx, 10*time.Second, false)
		if err == nil {
			err = m.measurePace(ctx)
		}
		if err != nil || len(busy) == 0 || busy[0] < busyHost {
			return err
		}
	}
	return nil
}

// measurePace compares the guest with the reference.
func (m *VM) measurePace(ctx context.Context) error {
	began := time.Now()
	r, err := m.Run(ctx, nil, "bash", "-c", paceLoop)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if err != nil {
		return fmt.Errorf("measure how fast the guest is: %w", err)
	}
	m.slow = max(1, float64(time.Since(began))/float64(paceTime))
	m.guest.env = []string{"BKSTUB_SLOWNESS=" + strconv.FormatFloat(m.slow, 'f', 2, 64)}
	return nil
}

// Limit is how long to wait on this machine for what takes no longer than d on the reference.
func (m *VM) Limit(d time.Duration) time.Duration {
	return time.Duration(float64(d) * max(1, m.slow))
}

// Limit is that of the machine.
func (m *Machine) Limit(d time.Duration) time.Duration { return m.VM.Limit(d) }
