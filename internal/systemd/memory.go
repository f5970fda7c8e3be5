package systemd

import (
	"sync"

	"github.com/gpu-mode/kbnode/internal/slot"
)

// Memory caches what systemd reported of units, for the daemon, which asks repeatedly
// over short-lived connections. What it holds changes only with a unit's state, and so
// with the time of the unit's last change, in microseconds. A known unit takes two calls
// instead of seven.
type Memory struct {
	mu    sync.Mutex
	units map[string]slot.Unit
}

// recall fills in what is known of a unit in this state since this time, and reports
// whether anything is.
func (m *Memory) recall(u *slot.Unit) bool {
	if m == nil || u.Since.IsZero() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.units[u.Name]
	if !ok || !known.Since.Equal(u.Since) || known.Active != u.Active || known.Sub != u.Sub {
		return false
	}
	u.Cgroup, u.MainPID, u.Restarts, u.ExitStatus, u.Result = known.Cgroup, known.MainPID, known.Restarts, known.ExitStatus, known.Result
	return true
}

func (m *Memory) keep(u slot.Unit) {
	if m == nil || u.Since.IsZero() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.units == nil {
		m.units = map[string]slot.Unit{}
	}
	m.units[u.Name] = u
}
