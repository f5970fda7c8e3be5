// Package daemon keeps a node as planned without supervision: it compares the machine with
// its plan, periodically and whenever a signal reports a change, and writes only where they
// differ.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Node is the machine, as the daemon sees it.
type Node interface {
	// Read reads everything again and makes the plan. It costs a probe of the GPUs and
	// several requests to the Docker engine.
	Read(ctx context.Context) (*Reading, error)
	// GPUs reads the GPUs only.
	GPUs(ctx context.Context) (*health.GPUs, error)
	// Docker returns why the engine behind a socket does not answer; nil if it does.
	Docker(ctx context.Context, socket string) error
	// Evaluate has a slot run a short evaluation as a job that uses each of its GPUs. says is what was computed, or why it did
	// not pass. An error means that it did not run, or not to its end.
	Evaluate(ctx context.Context, slot int) (passed bool, says string, err error)
	// Signals reads what files and system calls report about the node, with the space on
	// some disks, and the CDI specification in the engine's directories, if these are known.
	// What it could not read is listed in the result, and in the error.
	Signals(root string, disks, cdiDirs []string) (health.Node, error)
	// Stamp is cheap and changes when Read may return something else: it covers the files
	// that Read reads and the GPUs' addresses on the bus.
	Stamp(p *plan.Plan) string
	// Host returns the machine to observe and change. The caller closes it after use.
	Host(ctx context.Context) (*reconcile.Host, func(), error)
	// Watch calls changed when systemd reports a change of one of kbnode's units. alive
	// reports whether it still listens.
	Watch(ctx context.Context, changed func(unit string)) (alive func() bool, err error)
}

// Options are what a daemon needs.
type Options struct {
	Node   Node
	Events events.Log
	Log    *slog.Logger
	// Root is "/", or a directory that contains a machine's tree.
	Root string
	// Kmsg is the kernel's log.
	Kmsg signals.Kmsg
	// Clock reads the clocks; nil means signals.Now.
	Clock func() (health.Moment, error)
	// Wake requests a full pass: SIGHUP.
	Wake <-chan struct{}
	// Replaced reports whether another kbnode binary has replaced this one. The loop then
	// ends, and the service manager starts the new one.
	Replaced func() bool
	// Notify sends a state to the service manager; nil means sd_notify.
	Notify func(state string)
	// Publish is called after each pass; it may be nil. The loop waits for it.
	Publish func(Snapshot)
}

const (
	passInterval = 30 * time.Second       // between two looks
	gpusPause    = time.Minute            // between two readings of the GPUs
	wholeTime    = 5 * time.Minute        // between two full passes
	settleTime   = 200 * time.Millisecond // between a signal and a look, as more signals follow
	retryTime    = 5 * time.Second        // after a failed pass

	// passTime bounds one pass. Starting an agent takes up to 100 s, and several start at
	// once.
	passTime = 10 * time.Minute
	// Deadlines of calls that may hang: observing a busy machine, reading all of it with a
	// driver and an engine that both time out, checking files' times, writing a file.
	stateTime = 2 * time.Minute
	readTime  = 3 * time.Minute
	stampTime = 10 * time.Second
	writeTime = 10 * time.Second
	gpusTime  = time.Minute
	// maxChanges is how many changes of one pass get an event each.
	maxChanges = 10
	// maxError is how many characters of an error count: what an event has, or after a restart it would seem to be another one.
	maxError = 2 << 10
)

// Run keeps the node as planned until ctx ends. It logs and retries what fails.
func Run(ctx context.Context, o Options) {
	d := newDaemon(o)
	listening := make(chan struct{})
	listenCtx, stop := context.WithCancel(ctx)
	go func() {
		defer close(listening)
		d.listen(listenCtx, d.Kmsg)
	}()
	defer func() { stop(); <-listening }()
	// Before the first pass, which needs the lock: a kbnode install that starts this unit
	// holds it, and waits for the unit.
	d.Notify(daemon.SdNotifyReady)
	defer d.Notify(daemon.SdNotifyStopping)
	d.loop(ctx)
}

type daemonLoop struct {
	Options
	reading  Reading    // the last one
	plan     *plan.Plan // of the last full pass; nil before that
	drains   []plan.Drain
	stamp    string
	wholeAt  time.Time
	gpusAt   time.Time
	alive    func() bool // of the watch; nil if there is none
	unwatch  context.CancelFunc
	changed  chan string  // units that systemd reported
	slots    []slot.State // as last read
	stopping map[int]bool // slots whose agents were asked to stop for their health
	reported string       // the last error that was logged
	parked   map[int]bool // slots with an event that they are parked; nil before the first look

	parkedSince   map[int]time.Duration // when slots were first seen parked, by Moment.Up
	engine        inventory.Docker      // as it answered last
	snapshot      Snapshot              // of the current pass
	clocks        clocks
	rebootAt      time.Duration // by Moment.Up, when systemd was asked to reboot
	rebootRelease func()        // releases the lock that a reboot under way holds; nil if there is none
	health        *healthState
	judged        reports // by which was judged, and that are not answered
	evaluations   evaluations
}

func newDaemon(o Options) *daemonLoop {
	if o.Clock == nil {
		o.Clock = signals.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Notify == nil {
		o.Notify = func(state string) { _, _ = daemon.SdNotify(false, state) }
	}
	state, err := newHealthState(o.Root)
	if err != nil {
		o.Log.Warn("health state not read; starting without it", "err", err)
	}
	return &daemonLoop{Options: o, changed: make(chan string, 1), health: state, engine: inventory.Docker{RootDir: "/var/lib/docker"}}
}

// loop makes passes until ctx ends, waiting for a reason between them.
func (d *daemonLoop) loop(ctx context.Context) {
	defer d.stopWatch()
	defer d.endReboot()
	defer d.evaluations.close()
	whole, failed := true, 0
	for {
		d.Notify(daemon.SdNotifyWatchdog)
		if d.Replaced != nil && d.Replaced() {
			d.Log.Info("kbnode was replaced; restarting")
			return
		}
		d.watch(ctx)
		began := time.Now()
		d.snapshot = Snapshot{Whole: whole}
		err := d.pass(ctx, whole)
		d.answer(err)
		err = errors.Join(err, d.reboot(ctx))
		if ctx.Err() != nil {
			return
		}
		d.publish(began, err)
		wait := passInterval
		d.report(err)
		if err == nil {
			failed = 0
		} else {
			wait = min(passInterval, retryTime<<min(failed, 10))
			failed++
		}
		whole = d.wait(ctx, wait) || err != nil
		if ctx.Err() != nil {
			return
		}
	}
}

// wait waits for a reason to look. whole is true if everything must be read.
func (d *daemonLoop) wait(ctx context.Context, longest time.Duration) (whole bool) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return false
	case <-d.Wake:
		d.Log.Info("asked to read everything again")
		return true
	case unit := <-d.changed:
		d.Log.Debug("woken", "by", unit)
	}
	// More signals follow: a restart is several.
	_ = limit.Sleep(ctx, settleTime)
	select {
	case <-d.changed:
	default:
	}
	return false
}

// watch listens to systemd, and reconnects if the connection was lost.
func (d *daemonLoop) watch(ctx context.Context) {
	if d.alive != nil && d.alive() {
		return
	}
	if d.alive != nil {
		d.Log.Warn("connection to systemd lost")
	}
	d.stopWatch()
	watchCtx, cancel := context.WithCancel(ctx)
	alive, err := d.Node.Watch(watchCtx, d.wake)
	if err != nil {
		cancel()
		d.Log.Warn("cannot subscribe to systemd", "err", err)
		return
	}
	d.alive, d.unwatch = alive, cancel
}

// wake ends the wait for the next look.
func (d *daemonLoop) wake(what string) {
	select {
	case d.changed <- what:
	default: // one is enough
	}
}

func (d *daemonLoop) stopWatch() {
	if d.unwatch != nil {
		d.unwatch()
	}
	d.alive, d.unwatch = nil, nil
}

// report logs an error once, and once when it is over.
func (d *daemonLoop) report(err error) {
	d.recall()
	now := ""
	if err != nil {
		now = text.Line(strings.ReplaceAll(err.Error(), "\n", "; "), maxError)
	}
	var locked *reconcile.LockedError
	switch {
	case errors.As(err, &locked):
		d.Log.Debug("pass postponed", "err", err)
		return
	case now == d.reported:
	case now == "":
		d.Log.Info("node can be reconciled again")
		d.event(events.Event{Kind: "recovered", Slot: -1, Level: events.Info, Text: "the node can be reconciled again"})
		d.Notify("STATUS=the node is as planned")
	default:
		d.Log.Error("node not reconciled", "err", err)
		if withoutDigits(now) != withoutDigits(d.reported) { // the figures of some change each time
			d.event(events.Event{Kind: "error", Slot: -1, Level: events.Warn, Text: now})
		}
		d.Notify("STATUS=" + now)
	}
	d.reported = now
}

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}

func (d *daemonLoop) event(e ...events.Event) {
	if len(e) == 0 {
		return
	}
	if _, err := bounded(d, "events", writeTime, func() (struct{}, error) { return struct{}{}, d.Events.Add(e...) }); err != nil {
		d.Log.Warn("event not kept", "err", err)
	}
}
