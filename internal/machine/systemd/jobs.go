package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
)

const (
	// prepareTime is how long a start waits for programs of ExecStartPre=, which wait as long as a slot is parked:
	// a unit whose programs still run then is on its way.
	prepareTime = 2 * time.Second
	preparePoll = 250 * time.Millisecond
)

// Start implements Manager.
func (b *Bus) Start(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, JobTimeout)
	defer cancel()
	return b.jobs(ctx, "start", (*sddbus.Conn).StartUnitContext, names)
}

// Restart implements Manager.
func (b *Bus) Restart(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, JobTimeout)
	defer cancel()
	return b.jobs(ctx, "restart", (*sddbus.Conn).RestartUnitContext, names)
}

// Stop implements Manager. The caller bounds its time with ctx.
func (b *Bus) Stop(ctx context.Context, names ...string) error {
	return b.jobs(ctx, "stop", (*sddbus.Conn).StopUnitContext, names)
}

// jobs queues one job per unit and waits for all of them, so that slow units do not wait
// for each other.
func (b *Bus) jobs(ctx context.Context, verb string, queue func(*sddbus.Conn, context.Context, string, string, chan<- string) (int, error), names []string) error {
	var errs []error
	done, asked := make([]chan string, len(names)), time.Now()
	for i, name := range names {
		done[i] = make(chan string, 1) // buffered: the connection must not wait for us
		if _, err := queue(b.systemd(), ctx, name, "replace", done[i]); err != nil {
			if !lost(err) || !b.reached(ctx, verb, name) {
				errs = append(errs, &UnitError{name, verb, err})
			}
			done[i] = nil
		}
	}
	for i, name := range names {
		if done[i] == nil {
			continue
		}
		if err := b.wait(ctx, verb, name, asked, done[i]); err != nil {
			errs = append(errs, &UnitError{name, verb, err})
		}
	}
	return errors.Join(errs...)
}

// wait waits for the job that was asked for a unit.
func (b *Bus) wait(ctx context.Context, verb, name string, asked time.Time, done <-chan string) error {
	prepared := time.NewTicker(preparePoll)
	defer prepared.Stop()
	if verb == "stop" || !strings.HasSuffix(name, ".service") {
		prepared.Stop()
	}
	for {
		select {
		case result := <-done:
			if result != "done" && result != "skipped" {
				return fmt.Errorf("job %s%s", result, b.why(ctx, name))
			}
			return nil
		case <-ctx.Done():
			if !b.reached(ctx, verb, name) {
				return ctx.Err()
			}
			return nil
		case <-prepared.C:
			if time.Since(asked) >= prepareTime && b.prepares(ctx, verb, name, asked) {
				return nil
			}
		}
	}
}

// prepares reports whether a unit has been running programs of ExecStartPre= for prepareTime, of the start that was asked for.
func (b *Bus) prepares(ctx context.Context, verb, name string, asked time.Time) bool {
	units, err := b.Units(ctx, name)
	return err == nil && units[0].Preparing() && time.Since(units[0].Since) >= prepareTime && (verb == "start" || units[0].Since.After(asked))
}

// reached reports whether a unit is in the state that a job was to bring it to, if the
// end of the job was not reported. It is false for a restart, which leaves no trace in
// the state.
func (b *Bus) reached(ctx context.Context, verb, name string) bool {
	if errors.Is(ctx.Err(), context.Canceled) || verb == "restart" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	units, err := b.Units(ctx, name)
	want := map[string]string{"start": "active", "stop": "inactive"}[verb]
	return err == nil && units[0].Active == want
}

// why returns how a service ended, to add to the result of its job.
func (b *Bus) why(ctx context.Context, name string) string {
	units, err := b.Units(ctx, name)
	if err != nil || units[0].Result == "" || units[0].Result == "success" {
		return ""
	}
	return fmt.Sprintf(" (%s, exit status %d); see journalctl -u %s", units[0].Result, units[0].ExitStatus, name)
}
