// Package systemd speaks to this machine's systemd over D-Bus. It bounds each call in time, and
// repeats those whose answer was lost.
package systemd

import (
	"context"
	"sync"
	"syscall"

	sddbus "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Manager is the part of the service manager that kbnode uses. Connect returns the real
// one; test/systemdtest has one that records.
type Manager interface {
	// Units reads the state of units, in the order given. A unit that does not exist has
	// Load "not-found".
	Units(ctx context.Context, names ...string) ([]slot.Unit, error)
	// Loaded lists the units in memory that match patterns of fnmatch(3).
	Loaded(ctx context.Context, patterns ...string) ([]string, error)
	// Reload makes the manager read all unit files again.
	Reload(ctx context.Context) error
	// Start starts units at the same time and waits for all of them, but not for programs of ExecStartPre= that take
	// longer than moments, as those of a parked slot's agent.
	Start(ctx context.Context, names ...string) error
	// Restart is Start for units that may be running.
	Restart(ctx context.Context, names ...string) error
	// Stop asks units to stop and waits until they have. At the deadline of ctx it
	// returns context.DeadlineExceeded, and they continue to stop.
	Stop(ctx context.Context, names ...string) error
	// StartReboot begins an orderly reboot of the machine, and does not wait for it.
	StartReboot(ctx context.Context) error
	// Drain asks units to stop and does not wait.
	Drain(ctx context.Context, names ...string) error
	// Kill sends a signal to the main process of a unit, or to all of them.
	Kill(ctx context.Context, name string, all bool, signal syscall.Signal) error
	// ResetFailed clears the failed state of a unit.
	ResetFailed(ctx context.Context, name string) error
	// Enable and Disable set whether units start at boot.
	Enable(ctx context.Context, names ...string) error
	Disable(ctx context.Context, names ...string) error
	// SetProperties changes a running unit until the next boot.
	SetProperties(ctx context.Context, name string, properties ...Property) error
}

// Property is one property of a unit, by its D-Bus name. The value is a string (s),
// uint64 (t), []byte (ay) or []DeviceAllow (a(ss)).
type Property struct {
	Name  string
	Value any
}

// DeviceAllow is one line of a device policy, as on D-Bus.
type DeviceAllow struct {
	Path string
	Perm string
}

// UnitError is a unit's failure to do what it was asked to.
type UnitError struct {
	Unit string
	Verb string // "start", "restart", "stop"
	Err  error
}

func (e *UnitError) Error() string { return e.Verb + " " + e.Unit + ": " + e.Err.Error() }
func (e *UnitError) Unwrap() error { return e.Err }

// Memory caches what systemd reported of units, for the daemon, which asks repeatedly
// over short-lived connections. What it holds changes only with a unit's state, and so
// with the time of the unit's last change, in microseconds. A known unit takes two calls
// instead of eight.
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
	u.Cgroup, u.MainPID, u.Started, u.Restarts, u.ExitStatus, u.Result = known.Cgroup, known.MainPID, known.Started, known.Restarts, known.ExitStatus, known.Result
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

// watchBuffer is how many of systemd's signals are kept until they are read. The rest is
// lost, which does no harm: one signal is enough to look.
const watchBuffer = 64

// Watch calls changed, from another goroutine, when systemd reports that one of kbnode's
// units has changed, until ctx ends. It needs a connection that stays open: Alive reports
// whether it is.
func (b *Bus) Watch(ctx context.Context, changed func(unit string)) {
	updates := make(chan *sddbus.PropertiesUpdate, watchBuffer)
	lost := make(chan error, watchBuffer)
	b.systemd().SetPropertiesSubscriber(updates, lost)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-lost: // more signals than fit
				changed(err.Error())
			case u := <-updates:
				if _, ours := plan.OwnsUnit(u.UnitName); ours {
					changed(u.UnitName)
				}
			}
		}
	}()
}

// Alive reports whether the connection to systemd is still open.
func (b *Bus) Alive() bool { return b.systemd().Connected() }
