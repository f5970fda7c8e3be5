package systemd

import (
	"context"
	"errors"
	"fmt"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
)

// Program is a program that systemd runs as root, once, in a unit of its own: with nothing of its caller's.
type Program struct {
	Unit        string // its transient unit
	Ends        string // the transient unit of another one, which is ended before this one starts; "" for none
	Description string
	Args        []string // the first is its path
	Limit       time.Duration
}

const (
	// programMemory in bytes and programTasks are the daemon's, which also runs an operator's program.
	programMemory = 2 << 30
	programTasks  = 1024
	// programLines is how many lines of its output in programInterval the journal takes. It drops the others, and counts them.
	programLines    = 1000
	programInterval = 30 * time.Second
	// programEnd is how long its processes have after SIGTERM, and after SIGKILL.
	programEnd = 5 * time.Second
	// programSlack is how much more than its limit systemd may take to start and end it, and endedTime how long it may take to
	// end what is left of it.
	programSlack = time.Minute
	endedTime    = 30 * time.Second
	programPoll  = time.Second
)

// EndError is how a program ended that did not succeed.
type EndError struct {
	Result string // systemd's word: "exit-code", "signal", "timeout", …
	Status int    // the exit status, or the signal
	Limit  time.Duration
}

func (e *EndError) Error() string {
	switch e.Result {
	case "exit-code":
		return fmt.Sprintf("ended with exit status %d", e.Status)
	case "signal", "core-dump":
		return fmt.Sprintf("was killed by signal %d", e.Status)
	case "timeout":
		return fmt.Sprintf("did not end within %s, and was killed", e.Limit)
	case "oom-kill":
		return fmt.Sprintf("used more than %d GiB of memory, and was killed", programMemory>>30)
	}
	return "failed: " + e.Result
}

// properties are the settings of its unit. What it leaves in its cgroup is killed with the unit.
func (p Program) properties() []sddbus.Property {
	set := func(name string, value any) sddbus.Property {
		return sddbus.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	return []sddbus.Property{
		sddbus.PropDescription(p.Description),
		// Not ended by its own success, so that none of its states is mistaken for another.
		sddbus.PropType("oneshot"), sddbus.PropRemainAfterExit(true),
		// False: true would have systemd ignore a failure, whatever the library calls it. Source: src/core/dbus-execute.c.
		sddbus.PropExecStart(p.Args, false),
		set("TimeoutStartUSec", uint64(p.Limit.Microseconds())),
		set("TimeoutStopUSec", uint64(programEnd.Microseconds())),
		set("StandardInput", "null"), set("StandardOutput", "journal"), set("StandardError", "journal"),
		set("LogRateLimitIntervalUSec", uint64(programInterval.Microseconds())), set("LogRateLimitBurst", uint32(programLines)),
		set("MemoryMax", uint64(programMemory)), set("MemorySwapMax", uint64(0)), set("TasksMax", uint64(programTasks)),
	}
}

// Run runs a program to its end, and then ends what it left. The error is an *EndError if it did not succeed. If ctx ends, so
// does the program. What an earlier caller left in its unit, and in p.Ends, is ended first.
func (b *Bus) Run(ctx context.Context, p Program) (err error) {
	for _, unit := range []string{p.Ends, p.Unit} {
		if unit == "" {
			continue
		}
		if err := b.discard(ctx, unit); err != nil {
			return err
		}
	}
	defer func() {
		if left := b.discard(context.WithoutCancel(ctx), p.Unit); err == nil {
			err = left
		}
	}()
	done := make(chan string, 1) // buffered: the connection must not wait for us
	starting, cancel := context.WithTimeout(ctx, callTimeout)
	_, err = b.systemd().StartTransientUnitContext(starting, p.Unit, "replace", p.properties(), done)
	cancel()
	if err != nil && !lost(err) {
		return wrap(err, "start "+p.Unit)
	}
	limited, cancel := context.WithTimeoutCause(ctx, p.Limit+programSlack, errors.New("systemd does not say how "+p.Unit+" ended"))
	defer cancel()
	poll := time.NewTicker(programPoll) // a signal may be lost
	defer poll.Stop()
	for {
		select {
		case <-done:
		case <-poll.C:
		case <-limited.Done():
			return context.Cause(limited)
		}
		units, err := b.Units(limited, p.Unit)
		if err != nil {
			return err
		}
		if ended, err := p.ended(units[0]); ended {
			return err
		}
	}
}

// ended reports whether the program has ended, and how.
func (p Program) ended(u slot.Unit) (bool, error) {
	switch {
	case u.Active == "active": // and its program has exited
		return true, nil
	case u.Active == "failed":
		return true, &EndError{Result: u.Result, Status: u.ExitStatus, Limit: p.Limit}
	case u.Active == "inactive" && u.Pending == "":
		return true, errors.New(p.Unit + " was stopped, or not started")
	}
	return false, nil
}

// discard ends all that runs in a transient unit, and has systemd forget it.
func (b *Bus) discard(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, endedTime)
	defer cancel()
	err := b.Stop(ctx, unit)
	if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	return errors.Join(err, b.ResetFailed(ctx, unit))
}
