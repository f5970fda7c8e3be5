package systemd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// fakeBus answers like systemd, in D-Bus's wire format. answer gets the member of each
// call and returns a body, the name of an error, or "hang up".
type fakeBus struct {
	answer func(member string, nth int, body []any) (reply []any, fault string)

	mu     sync.Mutex
	calls  []string
	conns  []net.Conn
	result string // of jobs; "" is none
}

func (f *fakeBus) dial() (*sddbus.Conn, error) {
	return sddbus.NewConnection(func() (*dbus.Conn, error) {
		ours, theirs := net.Pipe()
		f.mu.Lock()
		f.conns = append(f.conns, theirs)
		f.mu.Unlock()
		go f.serve(theirs)
		conn, err := dbus.NewConn(ours)
		if err != nil {
			return nil, err
		}
		return conn, conn.Auth([]dbus.Auth{dbus.AuthExternal("0")})
	})
}

func (f *fakeBus) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimLeft(strings.TrimSpace(line), "\x00")
		switch {
		case line == "AUTH":
			_, err = io.WriteString(c, "REJECTED EXTERNAL\r\n")
		case strings.HasPrefix(line, "AUTH "):
			_, err = io.WriteString(c, "OK 1234deadbeef\r\n")
		case line == "NEGOTIATE_UNIX_FD":
			_, err = io.WriteString(c, "ERROR\r\n")
		case line == "BEGIN":
			for err == nil {
				err = f.message(c, r)
			}
		}
		if err != nil {
			return
		}
	}
}

func (f *fakeBus) message(c net.Conn, r io.Reader) error {
	m, err := dbus.DecodeMessage(r)
	if err != nil || m.Type != dbus.TypeMethodCall {
		return err
	}
	member, _ := m.Headers[dbus.FieldMember].Value().(string)
	f.mu.Lock()
	nth := 0
	for _, call := range f.calls {
		if call == member {
			nth++
		}
	}
	f.calls = append(f.calls, member)
	f.mu.Unlock()
	reply, fault := []any(nil), ""
	if member != "AddMatch" && member != "Subscribe" {
		reply, fault = f.answer(member, nth, m.Body)
	}
	out := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(m.Serial())}, Body: reply}
	switch fault {
	case "":
	case "hang up":
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, conn := range f.conns {
			_ = conn.Close()
		}
		return io.EOF
	default:
		out.Type, out.Headers[dbus.FieldErrorName] = dbus.TypeError, dbus.MakeVariant(fault)
	}
	if err := send(c, out); err != nil || !strings.HasSuffix(member, "Unit") || f.result == "" {
		return err
	}
	// The end of a job is signaled on the other connection.
	signal := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"), dbus.FieldMember: dbus.MakeVariant("JobRemoved"),
	}, Body: []any{uint32(7), dbus.ObjectPath("/job/7"), "a.service", f.result}}
	f.mu.Lock()
	other := f.conns[len(f.conns)-1]
	f.mu.Unlock()
	return send(other, signal)
}

func send(c net.Conn, m *dbus.Message) error {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	var wire bytes.Buffer
	// A server's message needs a serial, which EncodeTo takes from the message.
	if err := m.EncodeTo(&wire, binary.LittleEndian); err != nil {
		return err
	}
	data := wire.Bytes()
	if binary.LittleEndian.Uint32(data[8:12]) == 0 {
		binary.LittleEndian.PutUint32(data[8:12], 1)
	}
	_, err := c.Write(data)
	return err
}

// unitRow is a unit in the form in which systemd lists it.
type unitRow struct {
	Name, Description, Load, Active, Sub, Followed string
	Path                                           dbus.ObjectPath
	JobID                                          uint32
	JobType                                        string
	JobPath                                        dbus.ObjectPath
}

func unitsAnswer(active string) func(string, []any) ([]any, string) {
	return func(member string, body []any) ([]any, string) {
		switch member {
		case "ListUnitsByNames":
			return []any{[]unitRow{{Name: "a.service", Load: "loaded", Active: active, Sub: "running", Path: "/u", JobPath: "/"}}}, ""
		case "StartUnit", "StopUnit", "RestartUnit":
			return []any{dbus.ObjectPath("/job/7")}, ""
		case "Get":
			switch body[1] {
			case "NeedDaemonReload":
				return []any{dbus.MakeVariant(false)}, ""
			case "StateChangeTimestamp", "ExecMainStartTimestamp":
				return []any{dbus.MakeVariant(uint64(1e15))}, ""
			case "ControlGroup", "Result":
				return []any{dbus.MakeVariant("/x")}, ""
			case "MainPID", "NRestarts":
				return []any{dbus.MakeVariant(uint32(1))}, ""
			}
			return []any{dbus.MakeVariant(int32(0))}, ""
		}
		return nil, ""
	}
}

// A read whose answer is lost is repeated, on a new connection if the old one is gone. A
// call that systemd refuses is not.
func TestLostReadIsRepeated(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]int{
		"org.freedesktop.DBus.Error.NoReply":      2,
		"org.freedesktop.DBus.Error.Disconnected": 2,
		"hang up": 2,
		"org.freedesktop.DBus.Error.AccessDenied": 1,
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			units := unitsAnswer("active")
			f := &fakeBus{answer: func(member string, nth int, body []any) ([]any, string) {
				if nth == 0 && member == "ListUnitsByNames" {
					return nil, fault
				}
				return units(member, body)
			}}
			b, err := connect(f.dial)
			must.Do(t, err)
			defer b.Close()
			got, err := b.Units(t.Context(), "a.service")
			if (err == nil) != (want == 2) || err == nil && (got[0].Active != "active" || got[0].Cgroup != "/x" || got[0].Started.UnixMicro() != 1e15) {
				t.Errorf("%+v, %v", got, err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			asked := slices.DeleteFunc(slices.Clone(f.calls), func(m string) bool { return m != "ListUnitsByNames" })
			must.Equal(t, want, len(asked))
		})
	}
}

// TestSkipped checks a service that did nothing because of a condition, and one that was never started, for which
// systemd reports that none holds.
func TestSkipped(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		checked uint64
		holds   bool
		result  string
		want    bool
	}{
		"never started": {0, false, "success", false}, "ran": {1e15, true, "success", false},
		"a condition": {1e15, false, "success", true}, "ExecCondition=": {1e15, true, "exec-condition", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			units := unitsAnswer("inactive")
			f := &fakeBus{answer: func(member string, _ int, body []any) ([]any, string) {
				if member == "Get" {
					switch body[1] {
					case "ConditionTimestamp":
						return []any{dbus.MakeVariant(row.checked)}, ""
					case "ConditionResult":
						return []any{dbus.MakeVariant(row.holds)}, ""
					case "Result":
						return []any{dbus.MakeVariant(row.result)}, ""
					}
				}
				return units(member, body)
			}}
			b, err := connect(f.dial)
			must.Do(t, err)
			defer b.Close()
			got, err := b.Units(t.Context(), "a.service")
			must.Do(t, err)
			must.Equal(t, row.want, got[0].Skipped)
		})
	}
}

// A failed job is an error. If the end of a job is not reported, the state of its unit
// decides.
func TestJobs(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		result, active string
		call           func(context.Context, *Bus) error
		err            string
	}{
		"done":            {"done", "active", start, ""},
		"failed":          {"failed", "failed", start, "start a.service: job failed (/x, exit status 0)"},
		"timeout":         {"timeout", "activating", start, "job timeout"},
		"not told of":     {"", "active", start, ""},
		"not told, down":  {"", "inactive", start, "deadline"},
		"stop not told":   {"", "inactive", stop, ""},
		"stops still":     {"", "deactivating", stop, "deadline"},
		"stopped, failed": {"failed", "failed", stop, "job failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			units := unitsAnswer(row.active)
			f := &fakeBus{result: row.result, answer: func(member string, _ int, body []any) ([]any, string) { return units(member, body) }}
			b, err := connect(f.dial)
			must.Do(t, err)
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err = row.call(ctx, b)
			must.Err(t, err, row.err)
		})
	}
}

// TestPreparing checks that a start does not wait for a slot that is parked, or takes long to be cleared.
func TestPreparing(t *testing.T) {
	t.Parallel()
	restart := func(ctx context.Context, b *Bus) error { return b.Restart(ctx, "a.service") }
	for name, row := range map[string]struct {
		sub   string
		since func(now time.Time) time.Time
		call  func(context.Context, *Bus) error
		err   string
	}{
		"a parked slot":               {"start-pre", func(now time.Time) time.Time { return now }, start, ""},
		"one that was parked already": {"start-pre", func(now time.Time) time.Time { return now.Add(-time.Hour) }, start, ""},
		"a restart":                   {"start-pre", func(now time.Time) time.Time { return now.Add(time.Second / 4) }, restart, ""},
		"a start that waited":         {"start-pre", func(now time.Time) time.Time { return now.Add(time.Second) }, start, ""},
		"a restart that waits":        {"start-pre", func(now time.Time) time.Time { return now.Add(-time.Hour) }, restart, "deadline"},
		"its own start takes long":    {"start", func(now time.Time) time.Time { return now }, start, "deadline"},
		"a stop":                      {"start-pre", func(now time.Time) time.Time { return now }, stop, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			since := uint64(row.since(began).UnixMicro())
			units := unitsAnswer("activating")
			f := &fakeBus{answer: func(member string, _ int, body []any) ([]any, string) {
				reply, fault := units(member, body)
				switch {
				case member == "ListUnitsByNames":
					rows, _ := reply[0].([]unitRow)
					rows[0].Sub = row.sub
				case member == "Get" && body[1] == "StateChangeTimestamp":
					reply = []any{dbus.MakeVariant(since)}
				case member == "Get" && body[1] == "ControlPID":
					reply = []any{dbus.MakeVariant(uint32(9))}
				}
				return reply, fault
			}}
			b, err := connect(f.dial)
			must.Do(t, err)
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			must.Err(t, row.call(ctx, b), row.err)
			late := max(0, row.since(began).Sub(began))
			if took := time.Since(began); row.err == "" && (took < late+prepareTime || took > late+prepareTime+time.Second) {
				t.Errorf("it took %s", took)
			}
			got, err := b.Units(t.Context(), "a.service")
			if err != nil || (got[0].ControlPID == 9) != (row.sub == "start-pre") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func start(ctx context.Context, b *Bus) error { return b.Start(ctx, "a.service") }

func stop(ctx context.Context, b *Bus) error { return b.Stop(ctx, "a.service") }

// Only a unit in exactly the same state is not asked again.
func TestMemory(t *testing.T) {
	t.Parallel()
	since := time.UnixMicro(1_700_000_000_000_001).UTC()
	unit := slot.Unit{
		Name: "a.service", Load: "loaded", Active: "active", Sub: "running", Since: since,
		MainPID: 7, Started: since.Add(-time.Second), Restarts: 2, ExitStatus: 1, Result: "success", Cgroup: "/a", NeedReload: true,
	}
	var m Memory
	m.keep(unit)
	m.keep(slot.Unit{Name: "b.service", Active: "active", MainPID: 8})
	for name, tt := range map[string]struct {
		ask  slot.Unit
		want bool
	}{
		"the same":            {slot.Unit{Name: "a.service", Active: "active", Sub: "running", Since: since}, true},
		"a microsecond later": {slot.Unit{Name: "a.service", Active: "active", Sub: "running", Since: since.Add(time.Microsecond)}, false},
		"another state":       {slot.Unit{Name: "a.service", Active: "failed", Sub: "running", Since: since}, false},
		"another part of it":  {slot.Unit{Name: "a.service", Active: "active", Sub: "exited", Since: since}, false},
		"another unit":        {slot.Unit{Name: "c.service", Active: "active", Sub: "running", Since: since}, false},
		"since nobody knows":  {slot.Unit{Name: "b.service", Active: "active"}, false},
	} {
		got := tt.ask
		if m.recall(&got) != tt.want {
			t.Errorf("%s: known is %t", name, !tt.want)
		}
		want := tt.ask
		if tt.want {
			// What is not part of its state is asked each time.
			want.MainPID, want.Started, want.Restarts, want.ExitStatus, want.Result, want.Cgroup = 7, unit.Started, 2, 1, "success", "/a"
		}
		must.Equal(t, want, got)
	}
	var none *Memory
	none.keep(unit)
	if none.recall(&unit) {
		t.Error("nothing remembers")
	}
}
