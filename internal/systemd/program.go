package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// maxProgramOutput bounds what RunProgram reads, in bytes.
const maxProgramOutput = 1 << 20

// Program is a program that runs once, as a systemd service that leaves nothing behind.
type Program struct {
	Unit  string // the service's name
	Slice string
	User  string // with all groups that the system gives it; "" is root
	Argv  []string
	Limit time.Duration // after which it is killed
}

// RunProgram runs a program until it ends and returns its standard output, up to 1 MiB.
func (b *Bus) RunProgram(ctx context.Context, p Program) ([]byte, error) {
	fd, err := unix.MemfdCreate(p.Unit, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", p.Unit, err)
	}
	out := os.NewFile(uintptr(fd), p.Unit)
	defer func() { _ = out.Close() }()
	props := []sddbus.Property{
		sddbus.PropDescription("kbnode checks what a job can reach"),
		sddbus.PropType("oneshot"),
		sddbus.PropSlice(p.Slice),
		sddbus.PropExecStart(p.Argv, false),
		{Name: "User", Value: dbus.MakeVariant(p.User)},
		{Name: "StandardOutputFileDescriptor", Value: dbus.MakeVariant(dbus.UnixFD(fd))},
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")},
		{Name: "NoNewPrivileges", Value: dbus.MakeVariant(true)},
		{Name: "TimeoutStartUSec", Value: dbus.MakeVariant(uint64(p.Limit.Microseconds()))},
	}
	ctx, cancel := context.WithTimeout(ctx, p.Limit+callTimeout)
	defer cancel()
	done := make(chan string, 1) // buffered: the connection must not wait for us
	if _, err := b.systemd().StartTransientUnitContext(ctx, p.Unit, "fail", props, done); err != nil {
		return nil, &UnitError{p.Unit, "start", err}
	}
	select {
	case result := <-done:
		if result != "done" {
			return nil, &UnitError{p.Unit, "start", fmt.Errorf("job %s; see journalctl -u %s", result, p.Unit)}
		}
	case <-ctx.Done():
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_, err := b.systemd().StopUnitContext(end, p.Unit, "replace", nil)
		return nil, errors.Join(&UnitError{p.Unit, "start", ctx.Err()}, wrap(err, "stop "+p.Unit))
	}
	text, err := io.ReadAll(io.NewSectionReader(out, 0, maxProgramOutput))
	if err != nil {
		return nil, fmt.Errorf("read output of %s: %w", p.Unit, err)
	}
	return text, nil
}
