package slot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/host"
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
		{want: "starting", agent: Unit{Active: "deactivating", Sub: "stop-post", Result: "success"}},
		{want: "stopping", agent: Unit{Active: "deactivating", Sub: "stop-post", Result: "success", Pending: "stop"}},
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
		{"the clock was set back since", plan.Slot{}, State{Agent: Unit{Active: "active", Since: now.Add(time.Hour)}}, true},
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
	const reason = `{"reason": "its GPU is in use", "since": "2026-11-21T02:00:00Z"}`
	for _, row := range []struct {
		name   string
		active string
		marker bool
		reason string
		want   bool
		parked string
	}{
		{name: "registered", active: "active", marker: true, want: true},
		{name: "no marker yet", active: "active"},
		{name: "registered and ended", active: "failed", marker: true},
		{name: "the slot is cleared after one that had registered", active: "activating", marker: true},
		{name: "parked", active: "active", marker: true, reason: reason, want: true, parked: "its GPU is in use"},
		{name: "a reason that is not JSON", active: "active", marker: true, reason: "{", want: true, parked: "delete the file"},
	} {
		root := t.TempDir()
		run := filepath.Join(root, plan.RunDir(3))
		err := os.MkdirAll(filepath.Join(run, ParkedDir), 0o755)
		if row.marker {
			err = errors.Join(err, os.WriteFile(filepath.Join(run, RegisteredName), nil, 0o600))
		}
		if err == nil && row.reason != "" {
			err = os.WriteFile(filepath.Join(run, ParkedDir, "gpu.json"), []byte(row.reason), 0o600)
		}
		must.Do(t, err)
		got := State{Index: 3, Agent: Unit{Active: row.active}}.ReadRunDir(root)
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

// TestCountImplausible counts jobs for the daemon.
func TestCountImplausible(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, plan.RunDir(3))
	must.Do(t, os.MkdirAll(dir, 0o755))
	for want := range 3 {
		if got := (State{Index: 3}).ReadRunDir(root).Implausible; got != want {
			t.Errorf("%d instead of %d", got, want)
		}
		must.Do(t, CountImplausible(dir))
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, implausibleName), []byte("-5 jobs"), 0o600))
	if got := (State{Index: 3}).ReadRunDir(root).Implausible; got != 0 {
		t.Errorf("%d of a file that is no number", got)
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
		must.Do(t, err)
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

func TestLookupUser(t *testing.T) {
	t.Parallel()
	if uid, gid, err := LookupUser("root"); uid != 0 || gid != 0 || err != nil {
		t.Errorf("root: %d, %d, %v", uid, gid, err)
	}
	_, _, err := LookupUser("kbnode-no-such-user")
	must.Err(t, err, "run kbnode reconcile")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	const cgroup = "/buildkite.slice/buildkite-gpu0.slice"
	good := map[string]string{FileCPUs: "0-1,3", fileNodes: "0", fileMemory: "1048576", fileSwap: "0", filePids: "9"}
	want := plan.Slice{Unit: "buildkite-gpu0.slice", CPUs: "0,1,3", MemoryNodes: "0", MemoryBytes: 1<<20 + PageSlack - 1, TasksMax: 9}
	policy := plan.JobPolicy{Name: "gpu0", Slice: want.Unit, CPUs: want.CPUs, MemoryNodes: want.MemoryNodes, MemoryBytes: want.MemoryBytes}
	for _, tt := range []struct{ file, text, want, refusal string }{
		{},
		{FileCPUs, "0-3", "cpuset.cpus.effective is 0-3, should be 0,1,3", `cpuset.cpus.effective of buildkite-gpu0.slice is "0-3", planned is "0,1,3"`},
		{fileNodes, "", "cpuset.mems.effective does not exist, should be 0", `cpuset.mems.effective of buildkite-gpu0.slice is "", planned is "0"`},
		{fileMemory, "1048575", "memory.max is 1048575, should be 1114111", "memory.max of buildkite-gpu0.slice is 1048575, planned is 1114111"},
		{fileMemory, "1114112", "memory.max is 1114112, should be 1114111", "memory.max of buildkite-gpu0.slice is 1114112"},
		{fileMemory, "max", "memory.max is max, should be 1114111", "memory.max of buildkite-gpu0.slice is max"},
		{fileSwap, "max", "memory.swap.max is max, should be 0", "memory.swap.max of buildkite-gpu0.slice is max"},
		{fileSwap, "", "", ""}, // a kernel without swap accounting
		{filePids, "max", "pids.max is max, should be 9", ""},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, cgroup)
		for file, text := range good {
			if file == tt.file {
				text = tt.text
			}
			if text != "" {
				must.Write(t, dir, file, text+"\n")
			}
		}
		files, err := ReadLimits(dir)
		must.Do(t, err)
		got := ""
		for _, m := range Compare(want, Slice{Cgroup: cgroup, Files: files}) {
			got += strings.TrimPrefix(m.String(), host.CgroupRoot+cgroup+"/")
		}
		must.Equal(t, tt.want, got)
		if err := CheckLimits(root, policy); (err == nil) != (tt.refusal == "") || err != nil && !strings.Contains(err.Error(), tt.refusal) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.refusal)
		}
	}
	must.Err(t, CheckLimits(t.TempDir(), policy), "no such file")
}

// TestFrames reads what was written, however the stream is cut.
func TestFrames(t *testing.T) {
	t.Parallel()
	var stream bytes.Buffer
	f := NewFrames(&stream)
	long := strings.Repeat("0123456789", 20_000) // more than a frame has room for
	want := Outcome{ExitCode: 3, OutOfMemory: true, Reason: "it took too long", Files: "/x"}
	_, err1 := f.Writer(FrameStdout).Write([]byte(long))
	_, err2 := f.Writer(FrameStderr).Write([]byte("bad"))
	if err := errors.Join(f.Taken(), err1, err2, f.Note("pulls %s", "x"), f.Send(FrameStdout, nil), f.End(want)); err != nil {
		t.Fatal(err)
	}
	read := func(text string) (map[FrameKind]string, Outcome, error) {
		got := map[FrameKind]string{}
		o, err := ReadFrames(strings.NewReader(text), func(kind FrameKind, data []byte) { got[kind] += string(data) })
		return got, o, err
	}
	all := stream.String()
	got, o, err := read(all)
	if diff := cmp.Diff(map[FrameKind]string{FrameTaken: "", FrameStdout: long, FrameStderr: "bad", FrameNote: "pulls x"}, got); diff != "" || err != nil || o != want {
		t.Errorf("%v, %+v\n%s", err, o, diff)
	}
	for _, cut := range []int{0, 3, 5, 100, len(all) - 1} {
		if _, _, err := read(all[:cut]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	for _, bad := range []string{"o\xff\xff\xff\xff", "x\x00\x00\x00\x01{"} {
		if _, _, err := read(bad); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	stream.Reset()
	long = "\x1b[1m" + strings.Repeat("<", 1<<20)
	must.Do(t, f.End(Outcome{Reason: long, Refused: long, NodeFault: long, Lost: long, Pipeline: strings.Repeat("<", 4096)}))
	if _, o, err := read(stream.String()); err != nil || len(o.NodeFault) < 1000 || strings.Contains(o.NodeFault, "\x1b") {
		t.Errorf("long texts: %v, %.100q", err, o.NodeFault)
	}
	lost := NewFrames(failing{})
	if err := lost.Note("x"); err == nil || !errors.Is(lost.End(want), err) {
		t.Errorf("a reader that is gone: %v", err)
	}
}

// TestRequests are read as they were sent, within their bound.
func TestRequests(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	must.Do(t, WriteRequest(&sent, RequestRun, []byte("{}")))
	text := sent.String()
	kind, body, err := ReadRequest(&sent, 2)
	if kind != RequestRun || string(body) != "{}" || err != nil {
		t.Errorf("%c %q, %v", kind, body, err)
	}
	if _, _, err := ReadRequest(strings.NewReader(text), 1); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	for cut := range len(text) {
		if _, _, err := ReadRequest(strings.NewReader(text[:cut]), 2); err == nil || errors.Is(err, ErrTooLong) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }
