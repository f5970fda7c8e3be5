package vm

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// paceLoop is a loop in the guest's shell, and paceTime how long it takes on an idle machine with two
// cores, the reference for every limit of the rig and of bkstub.
const (
	paceLoop = `for ((i = 0; i < 100000; i++)); do :; done`
	paceTime = 1800 * time.Millisecond
)

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
