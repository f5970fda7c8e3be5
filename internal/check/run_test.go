package check

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// machine is what the checks of these tests are about.
type machine struct{ name string }

func (*machine) Lacks(string) bool { return false }

type (
	check   = Check[*machine]
	answer  = Answer[*machine]
	options = Options[*machine]
)

func found(all ...Finding) answer { return answer{Findings: all} }

func newFinding(s Status, detail string) Finding { return Finding{Status: s, Detail: detail} }

// says returns a check that finds one thing.
func says(id string, f Finding, needs ...string) check {
	return check{ID: id, Group: "group-" + id[:1], About: "a sentence", Worst: Fail, Needs: needs, Run: func(context.Context, *machine) answer { return found(f) }}
}

// summaries returns what a report says about each check, as text.
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
	keeps := check{ID: "a1", Group: "group-a", Worst: Fail, Run: func(context.Context, *machine) answer {
		return answer{Findings: []Finding{newFinding(OK, "read")}, Keep: func(m *machine) { m.name = "kept" }}
	}}
	uses := check{ID: "b1", Group: "group-b", Worst: Fail, Needs: []string{"a1"}, Run: func(_ context.Context, m *machine) answer { return found(newFinding(OK, "sees "+m.name)) }}
	hangs := check{ID: "c1", Group: "group-c", Worst: Warn, Limit: 20 * time.Millisecond, Run: func(context.Context, *machine) answer { select {} }}
	panics := check{ID: "c2", Group: "group-c", Worst: Fail, Run: func(context.Context, *machine) answer { return found(newFinding(OK, (*machine)(nil).name)) }}
	fast := says("c3", newFinding(OK, "fast"))
	slow := says("c4", newFinding(OK, "slow"))
	slow.Slow = true
	bare := says("d1", newFinding(OK, "bare"))
	bare.Bare = true
	capped := says("d2", newFinding(Fail, "no worse than a warning"))
	capped.Worst = Warn
	several := check{ID: "d3", Group: "group-d", Worst: Fail, Run: func(context.Context, *machine) answer {
		return found(newFinding(Skip, "slot 1 is busy"), newFinding(OK, "slot 2"), newFinding(Warn, "slot 3"))
	}}
	none := check{ID: "d4", Group: "group-d", Worst: Fail, Run: func(context.Context, *machine) answer { return answer{Detail: "no GPU of this kind"} }}

	for _, tt := range []struct {
		name   string
		o      options
		want   map[string]string
		notFit bool
	}{
		{"what it needs comes first", options{Checks: []check{uses, keeps}}, map[string]string{"a1": "ok: read", "b1": "ok: sees kept"}, false},
		{"what it needs is not shown", options{Checks: []check{keeps, uses}, Only: []string{"b1"}}, map[string]string{"b1": "ok: sees kept"}, false},
		{"a group", options{Checks: []check{keeps, uses, fast}, Only: []string{"group-a", "c3"}}, map[string]string{"a1": "ok: read", "c3": "ok: fast"}, false},
		{"left out, and needed", options{Checks: []check{keeps, uses, fast}, Skip: []string{"group-a", "c3"}}, map[string]string{"b1": "ok: sees kept"}, false},
		{"one that hangs holds nobody up", options{Checks: []check{hangs, says("c5", newFinding(OK, "fine"), "c1"), fast}},
			map[string]string{"c1": "warn: no answer after 0s", "c5": "ok: fine", "c3": "ok: fast"}, false},
		{"all hang", options{Checks: []check{{ID: "h1", Worst: Fail, Run: hangs.Run}, {ID: "h2", Worst: Fail, Run: hangs.Run, Needs: []string{"h1"}}}, Limit: 20 * time.Millisecond},
			map[string]string{"h1": "fail: no answer after 0s", "h2": "skip: h1 failed"}, true},
		{"one that panics", options{Checks: []check{panics, fast}},
			map[string]string{"c2": "fail: kbnode crashed in this check: runtime error: invalid memory address or nil pointer dereference", "c3": "ok: fast"}, true},
		{"a chain of needs", options{Checks: []check{says("a2", newFinding(OK, "-"), "a3"), says("a3", newFinding(OK, "-"), "a4"), says("a4", newFinding(Fail, "broken"))}},
			map[string]string{"a2": "skip: a4 failed", "a3": "skip: a4 failed", "a4": "fail: broken"}, true},
		{"what does not arise", options{Checks: []check{none, says("e1", newFinding(OK, "-"), "d4")}}, map[string]string{"d4": "skip: no GPU of this kind", "e1": "skip: no GPU of this kind"}, false},
		{"a warning keeps nobody back", options{Checks: []check{says("a2", newFinding(OK, "fine"), "a4"), says("a4", newFinding(Warn, "odd"))}},
			map[string]string{"a2": "ok: fine", "a4": "warn: odd"}, false},
		{"no containers", options{Checks: []check{fast, slow}, Fast: true}, map[string]string{"c3": "ok: fast"}, false},
		{"a bare machine", options{Checks: []check{fast, bare}, Bare: true}, map[string]string{"d1": "ok: bare"}, false},
		{"no worse than it may be", options{Checks: []check{capped}}, map[string]string{"d2": "warn: no worse than a warning"}, false},
		{"what a terminal would obey", options{Checks: []check{says("f1", newFinding(Fail, "process 7 (\x1b[2J\u009b0m\r\nok)"))}}, map[string]string{"f1": "fail: process 7 ( ok)"}, true},
		{"the worst of several", options{Checks: []check{several, none}}, map[string]string{"d3": "warn: slot 3", "d4": "skip: no GPU of this kind"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), &machine{}, tt.o)
			must.Do(t, err)
			must.Equal(t, tt.want, summaries(r))
			if r.Fit == tt.notFit {
				t.Errorf("fit is %t", r.Fit)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	var unknown *UnknownError
	if _, err := Run(t.Context(), &machine{}, options{Checks: []check{says("a1", newFinding(OK, "-"))}, Skip: []string{"a2"}}); !errors.As(err, &unknown) || unknown.Name != "a2" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, &machine{}, options{Checks: []check{says("a1", newFinding(OK, "-"))}}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestReportJSON tests that a report survives JSON, which other programs read.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Schema: Schema, Checks: []Result{{ID: "a", Group: "gpu", About: "it works", Status: Fail, Findings: []Finding{newFinding(Fail, "it does not").By("make it").Of(3)}}}}
	text, err := json.Marshal(r)
	must.Do(t, err)
	const want = `{"schema":1,"fit":false,"checks":[{"id":"a","group":"gpu","about":"it works","status":"fail",` +
		`"findings":[{"status":"fail","slots":[3],"detail":"it does not","fix":"make it"}],"took_ns":0}]}`
	must.Equal(t, want, string(text))
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Error(err)
	}
	must.Equal(t, *r, back)
	if json.Unmarshal([]byte(`{"checks":[{"status":"good"}]}`), &back) == nil {
		t.Error("an unknown status was taken")
	}
}

func TestNothingLeft(t *testing.T) {
	t.Parallel()
	all := []check{says("a1", newFinding(OK, "-")), says("b1", newFinding(OK, "-"))}
	for _, o := range []options{
		{Checks: all, Only: []string{"group-a"}, Skip: []string{"group-a"}},
		{Checks: all, Only: []string{"a1"}, Skip: []string{"group-a"}},
		{Checks: all, Skip: []string{"group-a", "group-b"}},
	} {
		if ids, err := o.Choose(); !errors.Is(err, ErrNothingLeft) {
			t.Errorf("%v without %v leaves %v, %v", o.Only, o.Skip, ids, err)
		}
	}
}
