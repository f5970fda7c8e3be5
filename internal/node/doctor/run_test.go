package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// says returns a check that finds one thing.
func says(id string, f Finding, needs ...string) Check {
	return Check{ID: id, Group: "group-" + id[:1], About: "a sentence", Worst: Fail, Needs: needs, Run: func(context.Context, *Machine) Answer { return found(f) }}
}

func TestRun(t *testing.T) {
	t.Parallel()
	keeps := Check{ID: "a1", Group: "group-a", Worst: Fail, Run: func(context.Context, *Machine) Answer {
		return Answer{Findings: []Finding{ok("read")}, Keep: func(m *Machine) { m.API.URL = "kept" }}
	}}
	uses := Check{ID: "b1", Group: "group-b", Worst: Fail, Needs: []string{"a1"}, Run: func(_ context.Context, m *Machine) Answer { return found(ok("sees %s", m.API.URL)) }}
	hangs := Check{ID: "c1", Group: "group-c", Worst: Warn, Limit: 20 * time.Millisecond, Run: func(context.Context, *Machine) Answer { select {} }}
	panics := Check{ID: "c2", Group: "group-c", Worst: Fail, Run: func(context.Context, *Machine) Answer { return found(ok("%s", (*Machine)(nil).API.URL)) }}
	fast := says("c3", ok("fast"))
	slow := says("c4", ok("slow"))
	slow.Slow = true
	bare := says("d1", ok("bare"))
	bare.Bare = true
	capped := says("d2", fail("no worse than a warning"))
	capped.Worst = Warn
	several := Check{ID: "d3", Group: "group-d", Worst: Fail, Run: func(context.Context, *Machine) Answer {
		return found(skip("slot 1 is busy"), ok("slot 2"), warn("slot 3"))
	}}
	none := Check{ID: "d4", Group: "group-d", Worst: Fail, Run: func(context.Context, *Machine) Answer { return Answer{Detail: "no GPU of this kind"} }}

	alone := Check{ID: "x1", Group: "group-x", Worst: Fail, Alone: true, Run: func(_ context.Context, m *Machine) Answer {
		time.Sleep(30 * time.Millisecond) // longer than others may take
		return found(ok("after %s", m.API.URL))
	}}

	for _, tt := range []struct {
		name   string
		o      Options
		want   map[string]string
		notFit bool
	}{
		{"what it needs comes first", Options{Checks: []Check{uses, keeps}}, map[string]string{"a1": "ok: read", "b1": "ok: sees kept"}, false},
		{"what it needs is not shown", Options{Checks: []Check{keeps, uses}, Only: []string{"b1"}}, map[string]string{"b1": "ok: sees kept"}, false},
		{"what it needs fails", Options{Checks: []Check{says("a2", fail("broken")), says("b2", ok("-"), "a2")}, Only: []string{"b2"}},
			map[string]string{"a2": "fail: broken", "b2": "skip: a2 failed"}, true},
		{"a group", Options{Checks: []Check{keeps, uses, fast}, Only: []string{"group-a", "c3"}}, map[string]string{"a1": "ok: read", "c3": "ok: fast"}, false},
		{"left out, and needed", Options{Checks: []Check{keeps, uses, fast}, Skip: []string{"group-a", "c3"}}, map[string]string{"b1": "ok: sees kept"}, false},
		{"one that hangs holds nobody up", Options{Checks: []Check{hangs, says("c5", ok("fine"), "c1"), fast}},
			map[string]string{"c1": "warn: no answer after 0s", "c5": "ok: fine", "c3": "ok: fast"}, false},
		{"all hang", Options{Checks: []Check{{ID: "h1", Worst: Fail, Run: hangs.Run}, {ID: "h2", Worst: Fail, Run: hangs.Run, Needs: []string{"h1"}}}, Limit: 20 * time.Millisecond},
			map[string]string{"h1": "fail: no answer after 0s", "h2": "skip: h1 failed"}, true},
		{"one that panics", Options{Checks: []Check{panics, fast}},
			map[string]string{"c2": "fail: kbnode crashed in this check: runtime error: invalid memory address or nil pointer dereference", "c3": "ok: fast"}, true},
		{"a chain of needs", Options{Checks: []Check{says("a2", ok("-"), "a3"), says("a3", ok("-"), "a4"), says("a4", fail("broken"))}},
			map[string]string{"a2": "skip: a4 failed", "a3": "skip: a4 failed", "a4": "fail: broken"}, true},
		{"what does not arise", Options{Checks: []Check{none, says("e1", ok("-"), "d4")}}, map[string]string{"d4": "skip: no GPU of this kind", "e1": "skip: no GPU of this kind"}, false},
		{"a warning keeps nobody back", Options{Checks: []Check{says("a2", ok("fine"), "a4"), says("a4", warn("odd"))}},
			map[string]string{"a2": "ok: fine", "a4": "warn: odd"}, false},
		{"no containers", Options{Checks: []Check{fast, slow}, Fast: true}, map[string]string{"c3": "ok: fast"}, false},
		{"one alone", Options{Checks: []Check{alone, keeps}, Only: []string{"group-x", "a1"}, Limit: 20 * time.Millisecond}, map[string]string{"a1": "ok: read", "x1": "ok: after kept"}, false},
		{"one alone that nobody names", Options{Checks: []Check{alone, keeps}}, map[string]string{"a1": "ok: read"}, false},
		{"a bare machine", Options{Checks: []Check{fast, bare}, Bare: true}, map[string]string{"d1": "ok: bare"}, false},
		{"no worse than it may be", Options{Checks: []Check{capped}}, map[string]string{"d2": "warn: no worse than a warning"}, false},
		{"what a terminal would obey", Options{Checks: []Check{says("f1", fail("process 7 (\x1b[2J\u009b0m\r\nok)"))}}, map[string]string{"f1": "fail: process 7 ( ok)"}, true},
		{"the worst of several", Options{Checks: []Check{several, none}}, map[string]string{"d3": "warn: slot 3", "d4": "skip: no GPU of this kind"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), &Machine{}, tt.o)
			must.Do(t, err)
			must.Equal(t, tt.want, summaries(r))
			if r.Fit == tt.notFit {
				t.Errorf("fit is %t", r.Fit)
			}
		})
	}
}

// TestFirst reports alone what makes everything else about a bare machine pointless.
func TestFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		read, first Finding
		o           Options
		want        map[string]string
		cut         bool
	}{
		{"it holds", ok("read"), ok("runs"), Options{Bare: true}, map[string]string{"a1": "ok: read", "b1": "fail: broken", "c1": "ok: runs", "d1": "skip: b1 failed"}, false},
		{"it fails", ok("read"), fail("a container"), Options{Bare: true}, map[string]string{"c1": "fail: a container"}, true},
		{"what it needs fails", fail("no /proc"), ok("runs"), Options{Bare: true}, map[string]string{"a1": "fail: no /proc"}, true},
		{"a group", ok("read"), fail("a container"), Options{Bare: true, Only: []string{"group-b"}}, map[string]string{"c1": "fail: a container"}, true},
		{"a node", ok("read"), fail("a container"), Options{}, map[string]string{"a1": "ok: read", "b1": "fail: broken", "c1": "fail: a container", "d1": "skip: b1 failed"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.o.Checks = []Check{says("a1", tt.read), says("b1", fail("broken")), says("c1", tt.first, "a1"), says("d1", ok("-"), "b1")}
			for i := range tt.o.Checks {
				tt.o.Checks[i].Bare, tt.o.Checks[i].First = true, tt.o.Checks[i].ID == "c1"
			}
			r, err := Run(t.Context(), &Machine{}, tt.o)
			must.Do(t, err)
			must.Equal(t, tt.want, summaries(r))
			must.Equal(t, tt.cut, r.Cut)
		})
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	var unknown *UnknownError
	if _, err := Run(t.Context(), &Machine{}, Options{Checks: []Check{says("a1", ok("-"))}, Skip: []string{"a2"}}); !errors.As(err, &unknown) || unknown.Name != "a2" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, &Machine{}, Options{Checks: []Check{says("a1", ok("-"))}}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestReportJSON tests that a report survives JSON, which other programs read.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Schema: Schema, Checks: []Result{{ID: "a", Group: "gpu", About: "it works", Status: Fail, Findings: []Finding{fail("it does not").By("make it").Of(3)}}}}
	text, err := json.Marshal(r)
	must.Do(t, err)
	const want = `{"schema":1,"fit":false,"checks":[{"id":"a","group":"gpu","about":"it works","status":"fail",` +
		`"findings":[{"status":"fail","slots":[3],"detail":"it does not","fix":"make it"}],"took_ns":0}]}`
	must.Equal(t, want, string(text))
	var back Report
	must.Do(t, json.Unmarshal(text, &back))
	must.Equal(t, *r, back)
	if json.Unmarshal([]byte(`{"checks":[{"status":"good"}]}`), &back) == nil {
		t.Error("an unknown status was taken")
	}
}

// TestAloneCleansUp interrupts a check that runs alone, which has time to clean up.
func TestAloneCleansUp(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	cleaned := false
	alone := Check{ID: "a1", Group: "group-a", Worst: Fail, Alone: true, Run: func(ctx context.Context, _ *Machine) Answer {
		interrupt()
		<-ctx.Done()
		time.Sleep(10 * time.Millisecond)
		cleaned = true
		return found(ok("-"))
	}}
	if _, err := Run(ctx, &Machine{}, Options{Checks: []Check{alone}, Only: []string{"a1"}}); !errors.Is(err, context.Canceled) || !cleaned {
		t.Errorf("%v, cleaned up: %t", err, cleaned)
	}
}

func TestNothingLeft(t *testing.T) {
	t.Parallel()
	all := []Check{says("a1", ok("-")), says("b1", ok("-"))}
	for _, o := range []Options{
		{Checks: all, Only: []string{"group-a"}, Skip: []string{"group-a"}},
		{Checks: all, Only: []string{"a1"}, Skip: []string{"group-a"}},
		{Checks: all, Skip: []string{"group-a", "group-b"}},
	} {
		if ids, err := o.Choose(); !errors.Is(err, ErrNothingLeft) {
			t.Errorf("%v without %v leaves %v, %v", o.Only, o.Skip, ids, err)
		}
	}
}

func TestRepairs(t *testing.T) {
	t.Parallel()
	fail := func(detail string) Finding { return Finding{Status: Fail, Detail: detail} }
	ok, warn := Finding{Detail: "fine"}, Finding{Status: Warn}
	r := &Report{Checks: []Result{
		{ID: "a", Findings: []Finding{fail("drift").Safely("kbnode reconcile").Of(3), fail("drift").Safely("kbnode reconcile").Of(1), fail("old").By("reboot")}},
		{ID: "b", Findings: []Finding{ok, warn.Safely("echo on")}},
		{ID: "c", Findings: []Finding{fail("drift").Safely("kbnode reconcile").Of(3), warn.Advise("cool it")}},
		{ID: "d", Findings: []Finding{{Status: OK, Fix: "echo never", Safe: true}, {Status: Skip, Fix: "echo never", Safe: true}}},
	}}
	want := []Repair{{"kbnode reconcile", []string{"a", "c"}, []int{1, 3}}, {"echo on", []string{"b"}, nil}}
	must.Equal(t, want, r.Repairs())
}

func TestRepairRuns(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := (Repair{Command: "echo $((40 + 2)) && echo odd >&2"}).Run(t.Context(), &out); err != nil || out.String() != "42\nodd\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	err := (Repair{Command: "exit 3"}).Run(t.Context(), &out)
	if err == nil || err.Error() != "run exit 3: exit status 3" {
		t.Errorf("%v", err)
	}
}
