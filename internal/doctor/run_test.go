package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/check"
	"github.com/gpu-mode/kbnode/internal/config"
)

// says returns a check that finds one thing.
func says(id string, f Finding, needs ...string) Check {
	return Check{ID: id, Group: "group-" + id[:1], About: "a sentence", Worst: Fail, Needs: needs, Run: func(context.Context, *Machine) Answer { return found(f) }}
}

// told returns what a report says about each check, as text.
func summaries(r *Report) map[string]string {
	all := map[string]string{}
	for _, c := range r.Checks {
		text := c.Summary()
		if strings.HasPrefix(text, "no answer after ") {
			text = "no answer after 0s" // a loaded machine takes longer
		}
		all[c.ID] = c.Status.String() + ": " + text
	}
	return all
}

func TestRun(t *testing.T) {
	t.Parallel()
	keeps := Check{ID: "a1", Group: "group-a", Worst: Fail, Run: func(context.Context, *Machine) Answer {
		return Answer{Findings: []Finding{ok("read")}, Keep: func(m *Machine) { m.Config = &config.Config{Node: "kept"} }}
	}}
	uses := Check{ID: "b1", Group: "group-b", Worst: Fail, Needs: []string{"a1"}, Run: func(_ context.Context, m *Machine) Answer { return found(ok("sees %s", m.Config.Node)) }}
	hangs := Check{ID: "c1", Group: "group-c", Worst: Warn, Limit: 20 * time.Millisecond, Run: func(context.Context, *Machine) Answer { select {} }}
	panics := Check{ID: "c2", Group: "group-c", Worst: Fail, Run: func(_ context.Context, m *Machine) Answer { return found(ok("%s", m.Plan.Node)) }}
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
	none := Check{ID: "d4", Group: "group-d", Worst: Fail, Run: func(context.Context, *Machine) Answer { return none("no GPU of this kind") }}

	for _, tt := range []struct {
		name   string
		o      Options
		want   map[string]string
		notFit bool
	}{
		{"what it needs comes first", Options{Checks: []Check{uses, keeps}}, map[string]string{"a1": "ok: read", "b1": "ok: sees kept"}, false},
		{"what it needs is not shown", Options{Checks: []Check{keeps, uses}, Only: []string{"b1"}}, map[string]string{"b1": "ok: sees kept"}, false},
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
		{"a bare machine", Options{Checks: []Check{fast, bare}, Bare: true}, map[string]string{"d1": "ok: bare"}, false},
		{"no worse than it may be", Options{Checks: []Check{capped}}, map[string]string{"d2": "warn: no worse than a warning"}, false},
		{"what a terminal would obey", Options{Checks: []Check{says("f1", fail("process 7 (\x1b[2J\u009b0m\r\nok)"))}}, map[string]string{"f1": "fail: process 7 ( ok)"}, true},
		{"the worst of several", Options{Checks: []Check{several, none}}, map[string]string{"d3": "warn: slot 3", "d4": "skip: no GPU of this kind"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), &Machine{}, tt.o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, summaries(r)); diff != "" {
				t.Error(diff)
			}
			if r.Fit == tt.notFit {
				t.Errorf("fit is %t", r.Fit)
			}
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

// TestChecks tests the checks themselves: what they need exists, has no cycles, and runs on
// a bare machine if they do.
func TestChecks(t *testing.T) {
	t.Parallel()
	all, byID := All(), map[string]Check{}
	for _, c := range all {
		if _, twice := byID[c.ID]; twice {
			t.Errorf("%s stands there twice", c.ID)
		}
		byID[c.ID] = c
		if !slices.Contains(Groups, c.Group) || c.About == "" || strings.HasSuffix(c.About, ".") || c.Run == nil || c.Worst < Warn || c.Limit > check.DefaultLimit {
			t.Errorf("%s is not whole: %+v", c.ID, c)
		}
		if slices.Contains(Groups, c.ID) && c.ID != c.Group {
			t.Errorf("%s is the name of a group", c.ID)
		}
	}
	if group := func(a, b Check) int { return slices.Index(Groups, a.Group) - slices.Index(Groups, b.Group) }; !slices.IsSortedFunc(all, group) {
		t.Errorf("the checks do not stand in the order of %v", Groups)
	}
	for _, c := range all {
		for _, need := range c.Needs {
			if _, there := byID[need]; !there {
				t.Errorf("%s needs %s, which there is not", c.ID, need)
			}
		}
		for _, id := range check.WithNeeds(all, []string{c.ID})[1:] {
			if id == c.ID || slices.Contains(check.WithNeeds(all, []string{id})[1:], c.ID) {
				t.Errorf("%s and %s need each other", c.ID, id)
			}
			if c.Bare && !byID[id].Bare {
				t.Errorf("%s is asked of a bare machine, and %s is not", c.ID, id)
			}
		}
	}
}

// TestReportJSON tests that a report survives JSON, which other programs read.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Schema: check.Schema, Checks: []Result{{ID: "a", Group: "gpu", About: "it works", Status: Fail, Findings: []Finding{fail("it does not").By("make it").Of(3)}}}}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"schema":1,"fit":false,"checks":[{"id":"a","group":"gpu","about":"it works","status":"fail",` +
		`"findings":[{"status":"fail","slots":[3],"detail":"it does not","fix":"make it"}],"took_ns":0}]}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Error(diff)
	}
	if json.Unmarshal([]byte(`{"checks":[{"status":"good"}]}`), &back) == nil {
		t.Error("an unknown status was taken")
	}
}
