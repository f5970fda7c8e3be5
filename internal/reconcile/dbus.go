package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// callTimeout bounds one question to systemd. jobTimeout bounds the start of a
// unit; it is above systemd's own default of 90 s, so that systemd's verdict is
// what is reported.
const (
	callTimeout = 25 * time.Second
	jobTimeout  = 100 * time.Second
)

// Bus is systemd of this machine over D-Bus.
type Bus struct {
	conn *sddbus.Conn
	// Memory, where there is one, saves questions.
	Memory *Memory
}

// Connect opens a connection to systemd, which ends when ctx does. A bus that takes
// connections and says nothing is given up.
func Connect(ctx context.Context) (*Bus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(callTimeout, func() { cancel(fmt.Errorf("no answer in %s", callTimeout)) })
	defer late.Stop()
	conn, err := sddbus.NewWithContext(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	// Without a subscriber systemd sends no signal when a job is done.
	if err := conn.Subscribe(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to systemd: %w", err)
	}
	return &Bus{conn: conn}, nil
}

// Close ends the connection.
func (b *Bus) Close() { b.conn.Close() }

// Units implements Systemd. Properties are asked for one by one: a service has
// some 300, and systemd searches directories for a few of them.
func (b *Bus) Units(ctx context.Context, names ...string) ([]UnitState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	listed, err := b.conn.ListUnitsByNamesContext(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read units: %w", err)
	}
	units := make([]UnitState, len(names))
	for i, name := range names {
		units[i] = UnitState{Name: name, Load: "not-found", Active: "inactive", Sub: "dead"}
		at := slices.IndexFunc(listed, func(l sddbus.UnitStatus) bool { return l.Name == name })
		if at < 0 {
			continue
		}
		u := &units[i]
		u.Load, u.Active, u.Sub = listed[at].LoadState, listed[at].ActiveState, listed[at].SubState
		if err := b.details(ctx, u); err != nil {
			return nil, err
		}
	}
	return units, nil
}

// details adds what the list of units does not tell.
func (b *Bus) details(ctx context.Context, u *UnitState) error {
	var errs []error
	get := func(kind, property string) any {
		p, err := b.conn.GetUnitTypePropertyContext(ctx, u.Name, kind, property)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s of unit %s: %w", property, u.Name, err))
			return nil
		}
		return p.Value.Value()
	}
	if u.Load != "not-found" || u.Active != "inactive" {
		u.NeedReload, _ = get("Unit", "NeedDaemonReload").(bool)
	}
	if u.Active == "inactive" {
		return errors.Join(errs...)
	}
	if usec, _ := get("Unit", "StateChangeTimestamp").(uint64); usec > 0 {
		u.Since = time.UnixMicro(int64(usec)).UTC()
	}
	if b.Memory.recall(u) {
		return errors.Join(errs...)
	}
	switch {
	case strings.HasSuffix(u.Name, ".slice"):
		u.Cgroup, _ = get("Slice", "ControlGroup").(string)
	case strings.HasSuffix(u.Name, ".service"):
		u.Cgroup, _ = get("Service", "ControlGroup").(string)
		pid, _ := get("Service", "MainPID").(uint32)
		restarts, _ := get("Service", "NRestarts").(uint32)
		status, _ := get("Service", "ExecMainStatus").(int32)
		u.MainPID, u.Restarts, u.ExitStatus = int(pid), int(restarts), int(status)
		u.Result, _ = get("Service", "Result").(string)
	}
	if len(errs) == 0 {
		b.Memory.keep(*u)
	}
	return errors.Join(errs...)
}

// Properties reads settings of a unit as they are in force, whatever its files and
// drop-ins say. kind is "Unit", or "Service" for what only services have.
func (b *Bus) Properties(ctx context.Context, unit, kind string, names ...string) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	values := map[string]any{}
	for _, name := range names {
		p, err := b.conn.GetUnitTypePropertyContext(ctx, unit, kind, name)
		if err != nil {
			return nil, fmt.Errorf("read %s of unit %s: %w", name, unit, err)
		}
		values[name] = p.Value.Value()
	}
	return values, nil
}

// Loaded implements Systemd.
func (b *Bus) Loaded(ctx context.Context, patterns ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	units, err := b.conn.ListUnitsByPatternsContext(ctx, nil, patterns)
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	names := make([]string, len(units))
	for i, u := range units {
		names[i] = u.Name
	}
	return names, nil
}

// Reload implements Systemd.
func (b *Bus) Reload(ctx context.Context) error {
	// A reload runs all generators, which takes its time on a busy machine.
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	return wrap(b.conn.ReloadContext(ctx), "reload systemd")
}

// Start implements Systemd.
func (b *Bus) Start(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	return b.jobs(ctx, "start", b.conn.StartUnitContext, names)
}

// Restart implements Systemd.
func (b *Bus) Restart(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	return b.jobs(ctx, "restart", b.conn.RestartUnitContext, names)
}

// Stop implements Systemd. How long it may take is the caller's business.
func (b *Bus) Stop(ctx context.Context, names ...string) error {
	return b.jobs(ctx, "stop", b.conn.StopUnitContext, names)
}

// jobs queues one job per unit and waits for all of them, so that units which
// take their time do so side by side.
func (b *Bus) jobs(ctx context.Context, verb string, queue func(context.Context, string, string, chan<- string) (int, error), names []string) error {
	var errs []error
	done := make([]chan string, len(names))
	for i, name := range names {
		done[i] = make(chan string, 1) // buffered: the connection must not wait for us
		if _, err := queue(ctx, name, "replace", done[i]); err != nil {
			errs = append(errs, &UnitError{name, verb, err})
			done[i] = nil
		}
	}
	for i, name := range names {
		if done[i] == nil {
			continue
		}
		select {
		case result := <-done[i]:
			if result != "done" && result != "skipped" {
				errs = append(errs, &UnitError{name, verb, fmt.Errorf("job %s%s", result, b.why(ctx, name))})
			}
		case <-ctx.Done():
			errs = append(errs, &UnitError{name, verb, ctx.Err()})
		}
	}
	return errors.Join(errs...)
}

// why adds what a service ended with to the result of its job.
func (b *Bus) why(ctx context.Context, name string) string {
	units, err := b.Units(ctx, name)
	if err != nil || units[0].Result == "" || units[0].Result == "success" {
		return ""
	}
	return fmt.Sprintf(" (%s, exit status %d); see journalctl -u %s", units[0].Result, units[0].ExitStatus, name)
}

// Drain implements Systemd.
func (b *Bus) Drain(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var errs []error
	for _, name := range names {
		_, err := b.conn.StopUnitContext(ctx, name, "replace", nil)
		errs = append(errs, wrap(err, "stop "+name))
	}
	return errors.Join(errs...)
}

// Kill implements Systemd. A unit without processes is no error.
func (b *Bus) Kill(ctx context.Context, name string, all bool, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	who := sddbus.Main
	if all {
		who = sddbus.All
	}
	err := b.conn.KillUnitWithTarget(ctx, name, who, int32(signal))
	if isBusError(err, "org.freedesktop.systemd1.NoSuchProcess", "org.freedesktop.DBus.Error.UnixProcessIdUnknown", "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	return wrap(err, "kill "+name)
}

// ResetFailed implements Systemd.
func (b *Bus) ResetFailed(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := b.conn.ResetFailedUnitContext(ctx, name)
	if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil // unloaded meanwhile
	}
	return wrap(err, "reset "+name)
}

// Enable implements Systemd.
func (b *Bus) Enable(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, _, err := b.conn.EnableUnitFilesContext(ctx, names, false, true)
	return wrap(err, "enable "+strings.Join(names, " "))
}

// Disable implements Systemd.
func (b *Bus) Disable(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.conn.DisableUnitFilesContext(ctx, names, false)
	return wrap(err, "disable "+strings.Join(names, " "))
}

// SetProperties implements Systemd.
func (b *Bus) SetProperties(ctx context.Context, name string, properties ...Property) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	props := make([]sddbus.Property, len(properties))
	for i, p := range properties {
		props[i] = sddbus.Property{Name: p.Name, Value: dbus.MakeVariant(p.Value)}
	}
	return wrap(b.conn.SetUnitPropertiesContext(ctx, name, true, props...), "set properties of "+name)
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func isBusError(err error, names ...string) bool {
	bus, ok := errors.AsType[dbus.Error](err)
	return ok && slices.Contains(names, bus.Name)
}
