package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// callTimeout bounds one call to systemd. JobTimeout bounds the start of a unit; it is
// above systemd's own default of 90 s, so that systemd's verdict is what is reported.
const (
	callTimeout = 25 * time.Second
	JobTimeout  = 100 * time.Second
	// maxAsks is how many times a call is made if its answer is lost. askPause is the
	// pause after the first try; each later pause is longer by as much.
	maxAsks  = 3
	askPause = 250 * time.Millisecond
)

// Bus is a connection to this machine's systemd over D-Bus.
type Bus struct {
	dial func() (*sddbus.Conn, error)
	mu   sync.Mutex
	conn *sddbus.Conn
	// Memory, if set, saves calls.
	Memory *Memory
}

// Connect opens a connection to systemd, which ends when ctx does. It gives up on a bus
// that accepts connections but does not answer.
func Connect(ctx context.Context) (*Bus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(callTimeout, func() { cancel(fmt.Errorf("no answer in %s", callTimeout)) })
	defer late.Stop()
	b, err := connect(func() (*sddbus.Conn, error) { return sddbus.NewWithContext(ctx) })
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("connect to systemd: %w", cause)
	}
	return b, err
}

func connect(dial func() (*sddbus.Conn, error)) (*Bus, error) {
	conn, err := dial()
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	// Without a subscriber systemd does not signal the end of a job.
	if err := conn.Subscribe(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to systemd: %w", err)
	}
	return &Bus{dial: dial, conn: conn}, nil
}

// Close ends the connection.
func (b *Bus) Close() { b.systemd().Close() }

func (b *Bus) systemd() *sddbus.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn
}

// ask calls f, again if the answer is lost: systemd does not answer while it reads its
// unit files, and drops all connections when it is replaced. f may thus take effect more
// than once. within bounds each call.
func (b *Bus) ask(ctx context.Context, within time.Duration, f func(context.Context, *sddbus.Conn) error) error {
	began := time.Now()
	for try := 1; ; try++ {
		callCtx, cancel := context.WithTimeout(ctx, within)
		conn := b.systemd()
		err := f(callCtx, conn)
		cancel()
		if try == maxAsks || ctx.Err() != nil || !lost(err) || time.Since(began) >= JobTimeout {
			return err
		}
		if limit.Sleep(ctx, time.Duration(try)*askPause) != nil {
			return err
		}
		if conn.Connected() {
			continue
		}
		if again, dialErr := connect(b.dial); dialErr == nil {
			b.mu.Lock()
			b.conn = again.conn
			b.mu.Unlock()
			conn.Close()
		}
	}
}

// lost reports whether the answer to a call was lost, so that the call may have been made
// or not, and another one may be answered.
func lost(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		isBusError(err, "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Timeout", "org.freedesktop.DBus.Error.TimedOut",
			"org.freedesktop.DBus.Error.Disconnected", "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner")
}

// Units implements Manager. It reads properties one by one: a service has some 300, and
// systemd searches directories for a few of them.
func (b *Bus) Units(ctx context.Context, names ...string) ([]slot.Unit, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var listed []sddbus.UnitStatus
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) (err error) {
		listed, err = conn.ListUnitsByNamesContext(ctx, names)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read units: %w", err)
	}
	units := make([]slot.Unit, len(names))
	for i, name := range names {
		units[i] = slot.Unit{Name: name, Load: "not-found", Active: "inactive", Sub: "dead"}
		at := slices.IndexFunc(listed, func(l sddbus.UnitStatus) bool { return l.Name == name })
		if at < 0 {
			continue
		}
		u := &units[i]
		u.Load, u.Active, u.Sub, u.Pending = listed[at].LoadState, listed[at].ActiveState, listed[at].SubState, listed[at].JobType
		if err := b.details(ctx, u); err != nil {
			return nil, err
		}
	}
	return units, nil
}

// details adds what is not in the list of units.
func (b *Bus) details(ctx context.Context, u *slot.Unit) error {
	var errs []error
	get := func(kind, property string) any {
		value, err := b.property(ctx, u.Name, kind, property)
		errs = append(errs, err)
		return value
	}
	if u.Load != "not-found" || u.Active != "inactive" {
		u.NeedReload, _ = get("Unit", "NeedDaemonReload").(bool)
	}
	if u.Active == "inactive" {
		if u.Load == "loaded" && strings.HasSuffix(u.Name, ".service") {
			checked, _ := get("Unit", "ConditionTimestamp").(uint64) // 0: never, and the result says nothing
			holds, known := get("Unit", "ConditionResult").(bool)
			u.Result, _ = get("Service", "Result").(string) // "exec-condition" is one, too
			u.Skipped = checked > 0 && known && !holds || u.Result == "exec-condition"
		}
		return errors.Join(errs...)
	}
	if usec, _ := get("Unit", "StateChangeTimestamp").(uint64); usec > 0 {
		u.Since = time.UnixMicro(int64(usec)).UTC()
	}
	if u.Preparing() { // one program follows the other without a change of the state
		pid, _ := get("Service", "ControlPID").(uint32)
		u.ControlPID = int(pid)
	}
	if b.Memory.recall(u) {
		return errors.Join(errs...)
	}
	switch {
	case strings.HasSuffix(u.Name, ".slice"):
		u.Cgroup, _ = get("Slice", "ControlGroup").(string)
	case strings.HasSuffix(u.Name, ".socket"):
		u.Result, _ = get("Socket", "Result").(string)
	case strings.HasSuffix(u.Name, ".service"):
		u.Cgroup, _ = get("Service", "ControlGroup").(string)
		pid, _ := get("Service", "MainPID").(uint32)
		restarts, _ := get("Service", "NRestarts").(uint32)
		status, _ := get("Service", "ExecMainStatus").(int32)
		u.MainPID, u.Restarts, u.ExitStatus = int(pid), int(restarts), int(status)
		u.Result, _ = get("Service", "Result").(string)
		if usec, _ := get("Service", "ExecMainStartTimestamp").(uint64); usec > 0 {
			u.Started = time.UnixMicro(int64(usec)).UTC()
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		b.Memory.keep(*u)
	}
	return err
}

func (b *Bus) property(ctx context.Context, unit, kind, name string) (value any, err error) {
	err = b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error {
		p, err := conn.GetUnitTypePropertyContext(ctx, unit, kind, name)
		if err == nil {
			value = p.Value.Value()
		}
		return err
	})
	return value, wrap(err, "read "+name+" of unit "+unit)
}

// Loaded implements Manager.
func (b *Bus) Loaded(ctx context.Context, patterns ...string) ([]string, error) {
	var units []sddbus.UnitStatus
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) (err error) {
		units, err = conn.ListUnitsByPatternsContext(ctx, nil, patterns)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	names := make([]string, len(units))
	for i, u := range units {
		names[i] = u.Name
	}
	return names, nil
}

// Reload implements Manager.
func (b *Bus) Reload(ctx context.Context) error {
	// A reload runs all generators, which is slow on a busy machine.
	err := b.ask(ctx, JobTimeout, func(ctx context.Context, conn *sddbus.Conn) error { return conn.ReloadContext(ctx) })
	return wrap(err, "reload systemd")
}

// Drain implements Manager.
func (b *Bus) Drain(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error {
			_, err := conn.StopUnitContext(ctx, name, "replace", nil)
			return err
		})
		errs = append(errs, wrap(err, "stop "+name))
	}
	return errors.Join(errs...)
}

// StartReboot implements Manager. It asks systemd-logind, which tells people, and refuses while a program blocks it, such as an
// upgrade of packages; where there is no logind, it starts what logind would.
func (b *Bus) StartReboot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := rebootByLogind(ctx)
	if errors.Is(err, errNoBus) || isBusError(err, "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitMasked") {
		_, err = b.systemd().StartUnitContext(ctx, "reboot.target", "replace-irreversibly", nil)
	}
	return wrap(err, "reboot")
}

// errNoBus means that no D-Bus daemon runs: systemd itself is reached without one.
var errNoBus = errors.New("connect to the system bus")

func rebootByLogind(ctx context.Context) error {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoBus, err)
	}
	defer conn.Close() //nolint:errcheck // nothing is left to send
	logind := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")
	// Without this flag, root's reboot ignores the programs that block one, before systemd 257. It is SD_LOGIND_ROOT_CHECK_INHIBITORS:
	// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
	const checkInhibitors = uint64(1)
	err = logind.CallWithContext(ctx, "org.freedesktop.login1.Manager.RebootWithFlags", 0, checkInhibitors).Err
	if isBusError(err, "org.freedesktop.DBus.Error.UnknownMethod") { // systemd 249 may have none
		const nobodyToAsk = false
		err = logind.CallWithContext(ctx, "org.freedesktop.login1.Manager.Reboot", 0, nobodyToAsk).Err
	}
	return err
}

// Kill implements Manager. A unit without processes is not an error.
func (b *Bus) Kill(ctx context.Context, name string, all bool, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	who := sddbus.Main
	if all {
		who = sddbus.All
	}
	err := b.systemd().KillUnitWithTarget(ctx, name, who, int32(signal))
	if isBusError(err, "org.freedesktop.systemd1.NoSuchProcess", "org.freedesktop.DBus.Error.UnixProcessIdUnknown", "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	return wrap(err, "kill "+name)
}

// ResetFailed implements Manager.
func (b *Bus) ResetFailed(ctx context.Context, name string) error {
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error { return conn.ResetFailedUnitContext(ctx, name) })
	if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil // unloaded meanwhile
	}
	return wrap(err, "reset "+name)
}

// Enable implements Manager.
func (b *Bus) Enable(ctx context.Context, names ...string) error {
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error {
		_, _, err := conn.EnableUnitFilesContext(ctx, names, false, true)
		return err
	})
	return wrap(err, "enable "+strings.Join(names, " "))
}

// Disable implements Manager.
func (b *Bus) Disable(ctx context.Context, names ...string) error {
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error {
		_, err := conn.DisableUnitFilesContext(ctx, names, false)
		return err
	})
	return wrap(err, "disable "+strings.Join(names, " "))
}

// SetProperties implements Manager.
func (b *Bus) SetProperties(ctx context.Context, name string, properties ...Property) error {
	props := make([]sddbus.Property, len(properties))
	for i, p := range properties {
		props[i] = sddbus.Property{Name: p.Name, Value: dbus.MakeVariant(p.Value)}
	}
	err := b.ask(ctx, callTimeout, func(ctx context.Context, conn *sddbus.Conn) error {
		return conn.SetUnitPropertiesContext(ctx, name, true, props...)
	})
	return wrap(err, "set properties of "+name)
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
