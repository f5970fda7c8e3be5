package systemd

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/gpu-mode/kbnode/test/must"
)

// programBus is a systemd that runs a program.
type programBus struct {
	fakeBus
	states  []string // of the unit, one for each look; the last one stays
	looks   int
	ended   string // the result of the service
	status  int32
	before  bool   // the unit is there before
	refuses string // the error of the start
	setting map[string]dbus.Variant
	stops   []string // units, in order
}

// serves makes the bus answer.
func (p *programBus) serves() *programBus {
	units := unitsAnswer("")
	p.answer = func(member string, nth int, body []any) ([]any, string) {
		if member == "StopUnit" {
			p.stops = append(p.stops, body[0].(string))
		}
		switch {
		case member == "StopUnit" && nth == 0 && !p.before:
			return nil, "org.freedesktop.systemd1.NoSuchUnit"
		case member == "StartTransientUnit":
			p.setting = map[string]dbus.Variant{}
			for _, row := range body[2].([][]any) {
				p.setting[row[0].(string)] = row[1].(dbus.Variant)
			}
			return []any{dbus.ObjectPath("/job/7")}, p.refuses
		case member == "ListUnitsByNames":
			state := p.states[min(p.looks, len(p.states)-1)]
			p.looks++
			rows := []unitRow{{Name: "a.service", Load: "loaded", Active: state, Path: "/u", JobPath: "/"}}
			if state == "queued" {
				rows[0].Active, rows[0].JobType = "inactive", "start"
			}
			return []any{rows}, ""
		case member == "Get" && body[1] == "Result":
			return []any{dbus.MakeVariant(p.ended)}, ""
		case member == "Get" && body[1] == "ExecMainStatus":
			return []any{dbus.MakeVariant(p.status)}, ""
		}
		return units(member, body)
	}
	return p
}

// done returns the calls that change something, in order.
func (p *programBus) done() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := slices.DeleteFunc(slices.Clone(p.calls), func(m string) bool { return !strings.HasSuffix(m, "Unit") || m == "GetUnit" })
	return strings.Join(calls, " ")
}

var aProgram = Program{Unit: "a.service", Description: "A program", Args: []string{"/usr/bin/kbnode", "run-hook", "--slot", "0", "prolog"}, Limit: 90 * time.Second}

// TestProgram runs a program to each of its ends, after which nothing of its unit is left.
func TestProgram(t *testing.T) {
	t.Parallel()
	const all = "StopUnit StartTransientUnit StopUnit ResetFailedUnit"
	for name, row := range map[string]struct {
		bus  *programBus
		err  string
		done string
	}{
		"succeeds":            {&programBus{states: []string{"active"}}, "", all},
		"takes its time":      {&programBus{states: []string{"queued", "activating", "active"}}, "", all},
		"exits":               {&programBus{states: []string{"failed"}, ended: "exit-code", status: 3}, "ended with exit status 3", all},
		"is killed":           {&programBus{states: []string{"failed"}, ended: "signal", status: 9}, "was killed by signal 9", all},
		"crashes":             {&programBus{states: []string{"failed"}, ended: "core-dump", status: 11}, "was killed by signal 11", all},
		"is late":             {&programBus{states: []string{"activating", "deactivating", "failed"}, ended: "timeout"}, "did not end within 1m30s, and was killed", all},
		"takes memory":        {&programBus{states: []string{"failed"}, ended: "oom-kill"}, "used more than 2 GiB of memory, and was killed", all},
		"something else":      {&programBus{states: []string{"failed"}, ended: "resources"}, "failed: resources", all},
		"is stopped":          {&programBus{states: []string{"activating", "inactive"}}, "a.service was stopped, or not started", all},
		"was there":           {&programBus{states: []string{"active"}, before: true}, "", "StopUnit ResetFailedUnit StartTransientUnit StopUnit ResetFailedUnit"},
		"cannot start":        {&programBus{states: []string{"inactive"}, refuses: "org.freedesktop.systemd1.TransactionIsDestructive"}, "start a.service: ", all},
		"starts all the same": {&programBus{states: []string{"active"}, refuses: "org.freedesktop.DBus.Error.NoReply"}, "", all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.bus.result = "done"
			bus := row.bus.serves()
			b, err := connect(bus.dial)
			must.Do(t, err)
			defer b.Close()
			must.Err(t, b.Run(t.Context(), aProgram), row.err)
			must.Equal(t, row.done, bus.done())
		})
	}
}

// TestProgramEnds ends another program before it starts its own, and does not start beside one that does not end.
func TestProgramEnds(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		"done":   "StopUnit ResetFailedUnit StopUnit ResetFailedUnit StartTransientUnit StopUnit ResetFailedUnit",
		"failed": "StopUnit ResetFailedUnit",
	} {
		bus := (&programBus{states: []string{"active"}, before: true}).serves()
		bus.result = result
		b, err := connect(bus.dial)
		must.Do(t, err)
		defer b.Close()
		p := aProgram
		p.Ends = "b.service"
		err = b.Run(t.Context(), p)
		if (err == nil) != (result == "done") {
			t.Error(err)
		}
		must.Equal(t, want, bus.done())
		must.Equal(t, p.Ends, bus.stops[0])
	}
}

// TestProgramCanceled ends a program with its caller's time.
func TestProgramCanceled(t *testing.T) {
	t.Parallel()
	bus := (&programBus{states: []string{"activating"}}).serves()
	bus.result = "done"
	b, err := connect(bus.dial)
	must.Do(t, err)
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx, aProgram) }()
	must.Until(t, "the start", func() bool { return strings.HasSuffix(bus.done(), "StartTransientUnit") })
	cancel()
	must.Err(t, <-ended, "canceled")
	must.Equal(t, "StopUnit StartTransientUnit StopUnit ResetFailedUnit", bus.done())
}

// TestProgramUnit sends each setting with the type that systemd reads.
func TestProgramUnit(t *testing.T) {
	t.Parallel()
	bus := (&programBus{states: []string{"active"}}).serves()
	bus.result = "done"
	b, err := connect(bus.dial)
	must.Do(t, err)
	defer b.Close()
	must.Do(t, b.Run(t.Context(), aProgram))
	got := map[string]string{}
	for name, v := range bus.setting {
		got[name] = v.String()
	}
	must.Equal(t, map[string]string{
		"Description": `"A program"`, "Type": `"oneshot"`, "RemainAfterExit": "true",
		"ExecStart":        `[["/usr/bin/kbnode", ["/usr/bin/kbnode", "run-hook", "--slot", "0", "prolog"], false]]`,
		"TimeoutStartUSec": "@t 90000000", "TimeoutStopUSec": "@t 5000000", "StandardInput": `"null"`, "StandardOutput": `"journal"`, "StandardError": `"journal"`,
		"LogRateLimitIntervalUSec": "@t 30000000", "LogRateLimitBurst": "@u 1000", "MemoryMax": "@t 2147483648", "MemorySwapMax": "@t 0", "TasksMax": "@t 1024",
	}, got)
}
