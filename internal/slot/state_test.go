package slot

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestWord checks the words; an agent that is stopping is not idle.
func TestWord(t *testing.T) {
	t.Parallel()
	drained := []plan.Drain{{By: plan.ByOperator}}
	unit := func(active, sub string) Unit { return Unit{Active: active, Sub: sub} }
	for _, row := range []struct {
		slot   plan.Slot
		agent  Unit
		job    bool
		parked bool
		want   string
	}{
		{want: "idle", agent: unit("active", "running")},
		{want: "busy", agent: unit("active", "running"), job: true},
		{want: "draining", agent: unit("deactivating", "stop-sigterm"), job: true},
		{want: "draining", slot: plan.Slot{Drains: drained}, agent: unit("active", "running"), job: true},
		{want: "draining", agent: unit("active", "running"), job: true, parked: true},
		{want: "stopping", agent: unit("deactivating", "stop-sigterm")},
		{want: "parked", agent: unit("active", "running"), parked: true},
		{want: "parked", slot: plan.Slot{Parked: "away"}, agent: unit("inactive", "dead")},
		{want: "drained", slot: plan.Slot{Drains: drained}, agent: unit("inactive", "dead")},
		{want: "failed", agent: unit("failed", "failed")},
		{want: "failed", agent: unit("activating", "auto-restart")},
		{want: "parked", agent: unit("activating", "auto-restart"), parked: true},
		{want: "busy", slot: plan.Slot{Parked: "away"}, agent: unit("active", "running"), job: true},
		{want: "stopping", slot: plan.Slot{Drains: drained}, agent: unit("deactivating", "stop-sigterm")},
		{want: "starting", agent: unit("activating", "start")},
		{want: "down", agent: unit("inactive", "dead")},
		{want: "down"},
	} {
		ss := State{Agent: row.agent}
		if row.job {
			ss.Job = &Job{ID: "1"}
		}
		if row.parked {
			ss.Parked = []Parked{{Reason: "its GPU is busy"}}
		}
		if got := ss.Word(row.slot); got != row.want || !slices.Contains(Words, got) {
			t.Errorf("%+v: %s, want %s", row, got, row.want)
		}
	}
}

// TestDisconnected distinguishes an agent that stops or works from one that does not come
// up.
func TestDisconnected(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	old := now.Add(-time.Hour)
	for _, row := range []struct {
		name  string
		slot  plan.Slot
		state State
		want  bool
	}{
		{"not registered", plan.Slot{}, State{Agent: Unit{Active: "active", Since: old}}, true},
		{"failed", plan.Slot{}, State{Agent: Unit{Active: "failed"}}, true},
		{"registered", plan.Slot{}, State{Registered: true, Agent: Unit{Active: "active", Since: old}}, false},
		{"parked", plan.Slot{}, State{Parked: []Parked{{}}, Agent: Unit{Active: "active", Since: old}}, false},
		{"just started", plan.Slot{}, State{Agent: Unit{Active: "active", Since: now}}, false},
		{"stopping", plan.Slot{}, State{Agent: Unit{Active: "deactivating", Sub: "auto-restart", Since: old}}, false},
		{"at work", plan.Slot{}, State{Job: &Job{ID: "1"}, Agent: Unit{Active: "active", Since: old}}, false},
		{"drained", plan.Slot{Drains: []plan.Drain{{}}}, State{Agent: Unit{Active: "failed"}}, false},
	} {
		if got := row.state.Disconnected(row.slot, now); (got != "") != row.want {
			t.Errorf("%s: %q", row.name, got)
		}
	}
}

// TestReadRunDir reads whether an agent has registered, and why its slot takes no jobs.
func TestReadRunDir(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 21, 3, 0, 0, 500, time.UTC)
	const reason = `{"reason": "its GPU is in use", "since": "2026-11-21T02:00:00Z"}`
	for _, row := range []struct {
		name   string
		active string
		marker time.Duration // after the agent's start; 0 means no marker
		link   bool          // a link in place of the marker
		reason string
		want   bool
		parked string
	}{
		{name: "registered since it started", active: "active", marker: time.Second, want: true},
		{name: "registered at once", active: "active", marker: 1, want: true},
		{name: "the marker is of the agent before", active: "active", marker: -time.Microsecond},
		{name: "no marker yet", active: "active"},
		{name: "registered and ended", active: "failed", marker: time.Second},
		{name: "a link to another file", active: "active", marker: -time.Hour, link: true},
		{name: "parked", active: "active", marker: time.Second, reason: reason, want: true, parked: "its GPU is in use"},
		{name: "a reason that is not JSON", active: "active", marker: time.Second, reason: "{", want: true, parked: "delete the file"},
	} {
		root := t.TempDir()
		marker := filepath.Join(root, RegisteredMarker(3))
		err := os.MkdirAll(filepath.Join(filepath.Dir(marker), ParkedDir), 0o755)
		if err == nil && row.marker != 0 {
			name := marker
			if row.link {
				name = filepath.Join(root, "elsewhere")
				old := unix.NsecToTimespec(since.Add(row.marker).UnixNano())
				err = errors.Join(os.WriteFile(name, nil, 0o600), os.Symlink(name, marker),
					unix.UtimesNanoAt(unix.AT_FDCWD, marker, []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW))
				row.marker = time.Hour
			} else {
				err = os.WriteFile(name, nil, 0o600)
			}
			at := since.Add(row.marker)
			err = errors.Join(err, os.Chtimes(name, at, at))
		}
		if err == nil && row.reason != "" {
			err = os.WriteFile(filepath.Join(filepath.Dir(marker), ParkedDir, "gpu.json"), []byte(row.reason), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := State{Index: 3, Agent: Unit{Active: row.active, Since: since}}.ReadRunDir(root)
		if got.Registered != row.want {
			t.Errorf("%s: registered %t, want %t", row.name, got.Registered, row.want)
		}
		var why string
		for _, p := range got.Parked {
			why += p.Reason
		}
		if why != row.parked && (row.parked == "" || !strings.Contains(why, row.parked)) {
			t.Errorf("%s: parked: %q, want %q", row.name, why, row.parked)
		}
	}
}

// TestPolicies reads the policies of a tree, and no file beyond it.
func TestPolicies(t *testing.T) {
	t.Parallel()
	if got, err := ReadPolicies(t.TempDir()); got != nil || err != nil {
		t.Errorf("of no node: %v, %v", got, err)
	}
	elsewhere := filepath.Join(t.TempDir(), "policy")
	must.Do(t, os.WriteFile(elsewhere, []byte(`{"slot": 10}`), 0o600))
	for _, row := range []struct{ name, text, want string }{
		{"gpu10.json", `{"slot": 10}`, ""},
		{"gpu10.json", `{"slot": 1}`, "is for slot 1; run kbnode reconcile"},
		{"gpu10.json", `{`, "read policy /etc/kbnode/slots/gpu10.json"},
		{"gpu10.json", "", "escapes"},
		{"README", `{`, ""},
		{"gpu01.json", `{`, ""},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "etc/kbnode/slots")
		err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "gpu2.json"), []byte(`{"slot": 2}`), 0o600))
		if row.text == "" {
			err = errors.Join(err, os.Symlink(elsewhere, filepath.Join(dir, row.name)))
		} else {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, row.name), []byte(row.text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadPolicies(root)
		if row.want != "" {
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s %s: %v", row.name, row.text, err)
			}
			continue
		}
		if err != nil || len(got) == 0 || got[0].Slot != 2 || (len(got) == 2) != (row.name == "gpu10.json") {
			t.Errorf("%s: %v, %v", row.name, got, err)
		}
	}
}

// TestRegister compares with the clock, not with the kernel's coarse time for files.
func TestRegister(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	run := filepath.Join(root, filepath.Dir(RegisteredMarker(3)))
	if err := Register(run); err == nil {
		t.Fatal("registered without a run directory")
	}
	must.Do(t, os.MkdirAll(run, 0o755))
	for range 100 {
		before := time.Now()
		must.Do(t, Register(run))
		after := time.Now()
		if !registered(root, 3, before) {
			t.Fatal("an agent that was started just before has not registered")
		}
		if registered(root, 3, after) {
			t.Fatal("the agent that is started next has registered")
		}
	}
}

func TestLookupUser(t *testing.T) {
	t.Parallel()
	if uid, gid, err := LookupUser("root"); uid != 0 || gid != 0 || err != nil {
		t.Errorf("root: %d, %d, %v", uid, gid, err)
	}
	_, _, err := LookupUser("kbnode-no-such-user")
	must.Err(t, err, "run kbnode reconcile")
}
