package reconcile

import (
	"context"
	"syscall"
	"time"
)

// Systemd is the part of the service manager that kbnode uses. Connect returns the real
// one; systemdtest has one that records.
type Systemd interface {
	// Units reads the state of units, in the order given. A unit that does not exist has
	// Load "not-found".
	Units(ctx context.Context, names ...string) ([]UnitState, error)
	// Loaded lists the units in memory that match patterns of fnmatch(3).
	Loaded(ctx context.Context, patterns ...string) ([]string, error)
	// Reload makes the manager read all unit files again.
	Reload(ctx context.Context) error
	// Start starts units at the same time and waits for all of them.
	Start(ctx context.Context, names ...string) error
	// Restart is Start for units that may be running.
	Restart(ctx context.Context, names ...string) error
	// Stop asks units to stop and waits until they have. At the deadline of ctx it
	// returns context.DeadlineExceeded, and they continue to stop.
	Stop(ctx context.Context, names ...string) error
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

// UnitState is a systemd unit as the manager reports it.
type UnitState struct {
	Name       string    `json:"name"`
	Load       string    `json:"load"`           // "loaded", "not-found", "masked", …
	Active     string    `json:"active"`         // "active", "activating", "deactivating", "inactive", "failed"
	Sub        string    `json:"sub"`            // "running", "auto-restart", …
	Enabled    bool      `json:"enabled"`        // linked from a target in /etc
	Since      time.Time `json:"since,omitzero"` // when its state last changed
	MainPID    int       `json:"main_pid,omitempty"`
	Restarts   int       `json:"restarts,omitempty"`   // by Restart=, since it was started
	Result     string    `json:"result,omitempty"`     // "success", "exit-code", … of a service
	ExitStatus int       `json:"exit_status"`          // of the last main process
	Cgroup     string    `json:"cgroup,omitempty"`     // below /sys/fs/cgroup
	NeedReload bool      `json:"need_reload"`          // the unit file on disk is newer
	Generation string    `json:"generation,omitempty"` // KBNODE_GENERATION of the main process
}

// Exists reports whether systemd knows a file for the unit.
func (u UnitState) Exists() bool { return u.Load != "" && u.Load != "not-found" }

// Running reports whether the unit is up, or on its way up or down.
func (u UnitState) Running() bool {
	return u.Active == "active" || u.Active == "activating" || u.Active == "deactivating" || u.Active == "reloading"
}

// Failing reports whether the unit's process ended with an error and is about to be
// started again. An agent that ends after its job is not failing.
func (u UnitState) Failing() bool {
	return u.Result != "success" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued" || u.Sub == "stop-post")
}

// Stopping reports whether the unit was asked to stop and has not stopped yet.
func (u UnitState) Stopping() bool { return u.Active == "deactivating" }
