package slot

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"
)

// Unit is a systemd unit as the manager reports it.
type Unit struct {
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
func (u Unit) Exists() bool { return u.Load != "" && u.Load != "not-found" }

// Running reports whether the unit is up, or on its way up or down.
func (u Unit) Running() bool {
	return u.Active == "active" || u.Active == "activating" || u.Active == "deactivating" || u.Active == "reloading"
}

// Failing reports whether the unit's process ended with an error and is about to be
// started again. An agent that ends after its job is not failing.
func (u Unit) Failing() bool {
	return u.Result != "success" && (u.Sub == "auto-restart" || u.Sub == "auto-restart-queued" || u.Sub == "stop-post")
}

// Stopping reports whether the unit was asked to stop and has not stopped yet.
func (u Unit) Stopping() bool { return u.Active == "deactivating" }

// LookupUser returns the IDs of a user that kbnode makes.
func LookupUser(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w; run kbnode reconcile", name, err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w", name, err)
	}
	return uid, gid, nil
}
