package reconcile

import (
	"context"
	"syscall"
	"time"
)

// Systemd are the words that kbnode speaks to the service manager. The real one
// is Connect; systemdtest has one that records.
type Systemd interface {
	// Units reads the state of units, in the order asked for. A unit that does
	// not exist has Load "not-found".
	Units(ctx context.Context, names ...string) ([]UnitState, error)
	// Loaded lists the units in memory that match patterns of fnmatch(3).
	Loaded(ctx context.Context, patterns ...string) ([]string, error)
	// Reload makes the manager read all unit files again.
	Reload(ctx context.Context) error
	// Start starts units at once and waits for all of them.
	Start(ctx context.Context, names ...string) error
	// Restart is Start for units that may be running.
	Restart(ctx context.Context, names ...string) error
	// Stop asks units to stop and waits until they have, or until the deadline
	// of ctx: the error is context.DeadlineExceeded then, and they go on
	// stopping.
	Stop(ctx context.Context, names ...string) error
	// Drain asks units to stop and does not wait.
	Drain(ctx context.Context, names ...string) error
	// Kill sends a signal to the main process of a unit, or to all of them.
	Kill(ctx context.Context, name string, all bool, signal syscall.Signal) error
	// ResetFailed forgets that a unit failed.
	ResetFailed(ctx context.Context, name string) error
	// Enable and Disable say whether units start at boot.
	Enable(ctx context.Context, names ...string) error
	Disable(ctx context.Context, names ...string) error
	// SetProperties changes a running unit until the next boot.
	SetProperties(ctx context.Context, name string, properties ...Property) error
}

// Property is one property of a unit, by its name on D-Bus. The value is one of
// string (s), uint64 (t), []byte (ay) and []DeviceAllow (a(ss)).
type Property struct {
	Name  string
	Value any
}

// DeviceAllow is one line of a device policy, as D-Bus has it.
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
	Since      time.Time `json:"since,omitzero"` // of the present Active
	MainPID    int       `json:"main_pid,omitempty"`
	Restarts   int       `json:"restarts,omitempty"`   // by Restart=, since it was started
	Result     string    `json:"result,omitempty"`     // "success", "exit-code", … of a service
	ExitStatus int       `json:"exit_status"`          // of the main process that ran last
	Cgroup     string    `json:"cgroup,omitempty"`     // below /sys/fs/cgroup
	NeedReload bool      `json:"need_reload"`          // the unit file on disk is newer
	Generation string    `json:"generation,omitempty"` // KBNODE_GENERATION of the main process
}

// Exists says that systemd knows a file for the unit.
func (u UnitState) Exists() bool { return u.Load != "" && u.Load != "not-found" }

// Running says that the unit is up, or on its way up or down.
func (u UnitState) Running() bool {
	return u.Active == "active" || u.Active == "activating" || u.Active == "deactivating" || u.Active == "reloading"
}

// Failing says that the unit's process ended with an error and is about to be
// started again. An agent that ends after its job is not failing.
func (u UnitState) Failing() bool {
	return u.Result != "success" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued" || u.Sub == "stop-post")
}

// Stopping says that the unit was asked to stop and has not yet.
func (u UnitState) Stopping() bool { return u.Active == "deactivating" }
