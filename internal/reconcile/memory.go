package reconcile

import "sync"

// Memory keeps what systemd said of units, for the daemon, which asks again and again
// over connections that come and go. What is in it changes with a unit's state, and so
// with the time of its last change, in microseconds: a unit of which that is known is
// asked two questions, and not seven.
type Memory struct {
	mu    sync.Mutex
	units map[string]UnitState
}

// recall fills in what is known of a unit in this state since this time.
func (m *Memory) recall(u *UnitState) bool {
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

func (m *Memory) keep(u UnitState) {
	if m == nil || u.Since.IsZero() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.units == nil {
		m.units = map[string]UnitState{}
	}
	m.units[u.Name] = u
}
