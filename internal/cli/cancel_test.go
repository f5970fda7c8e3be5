package cli

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCancelCommand cancels a submission of another command by its run ID, and what it says of runs that have ended and of
// others.
func TestCancelCommand(t *testing.T) {
	s := bktest.New(bktest.Options{Steps: runnerStep})
	started := make(chan struct{}, 1)
	must.Do(t, s.Employ(t.Context(), bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200", "gpu-index=3"}, Do: func(ctx context.Context, _ *bktest.Work) {
		started <- struct{}{}
		<-ctx.Done()
	}}))
	useBuildkite(t, s)
	sent := make(chan result)
	go func() { sent <- kbnode(t, "submit", "--queue", "b200", "--hello", "--run-id", "run-1") }()
	select {
	case <-started:
	case got := <-sent:
		t.Fatalf("%+v", got)
	case <-time.After(time.Minute):
		t.Fatal("no job after a minute")
	}
	got := kbnode(t, "cancel", "run-1", "run-2")
	must.Equal(t, "run-1: build 1 is being canceled\n", got.out)
	must.Contain(t, got.err, "no build of kbnode/kernelbot has the run ID run-2; --pipeline names another pipeline")
	must.Equal(t, 1, got.code)
	if got := <-sent; got.code != 1 || !strings.Contains(got.out+got.err, "cancelled") {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"run-1", "kernelbot#1", "https://buildkite.com/kbnode/kernelbot/builds/1#0191"} {
		must.Equal(t, name+": build 1 has ended: canceled\n", kbnode(t, "cancel", name).out)
	}
	must.Equal(t, 1, kbnode(t, "cancel", "kernelbot#2").code)
	for _, tt := range []struct{ args, says string }{
		{"", "no run is named; write kbnode cancel RUN, with the run ID"},
		{"run\x1b[2J", "is not a run ID; kbnode submit prints them"},
		{"#1", "\"#1\" names no pipeline; write kbnode cancel PIPELINE#1"},
		{"https://example.com/x", "is not a run ID; kbnode submit prints them"},
		{"run-1 --pipeline Kernel/bot", "is not the name of a pipeline"},
	} {
		if got := kbnode(t, append([]string{"cancel"}, strings.Fields(tt.args)...)...); got.code != 2 || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, "\x1b") {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}

// TestSubmitSaysHowToCancel submits one run that passes, and one whose creation is not answered.
func TestSubmitSaysHowToCancel(t *testing.T) {
	got, s, _ := onQueue(t, map[string]string{"result.json": resultGood}, "submit", "--queue", "b200", "--hello", "--run-id", "run-1")
	if !strings.Contains(got.err, "/builds/1\n  run ID: run-1\n") || strings.Contains(got.err, "to cancel it") {
		t.Errorf("%+v", got)
	}
	s.Inject(bktest.Fault{Route: "POST /v2/organizations/{org}/pipelines/{pipeline}/builds", Status: 500, Times: -1})
	got = kbnode(t, "submit", "--queue", "b200", "--hello", "--run-id", "run-2", "--org", "kbnode")
	if got.code != 1 || !strings.HasSuffix(got.err, "  to cancel it: kbnode cancel --org kbnode run-2\n") {
		t.Errorf("%+v", got)
	}
}

// TestSubmitFollow shows a build that another command sent, its result's file, and what it refuses.
func TestSubmitFollow(t *testing.T) {
	first, _, _ := onQueue(t, map[string]string{"result.json": resultGood}, "submit", "--queue", "b200", "--hello", "--run-id", "run-1")
	file := filepath.Join(t.TempDir(), "result.json")
	got := kbnode(t, "submit", "--follow", "run-1", "--result", file)
	must.Equal(t, 0, got.code)
	must.Equal(t, resultGood, must.Read(t, file))
	// All but its time is what the first command printed.
	must.Equal(t, strings.Split(first.out, "build 1 on")[0], strings.Split(got.out, "build 1 on")[0])
	if got := kbnode(t, "submit", "--follow", "", "--hello"); got.code != 2 {
		t.Errorf("%+v", got)
	}
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"run-2", 1, "no build of kbnode/kernelbot has the run ID run-2"},
		{"run-1 --hello", 2, "--follow sends nothing; leave out --hello\n"},
		{"run-1 mine.py --dry-run", 2, "--follow sends nothing; leave out --dry-run, mine.py\n"},
		{"run-1 --eval x --timeout 1m", 2, "--follow sends nothing; leave out --problem, --timeout\n"},
		{"run-1 --result /nowhere/x", 2, "--result"},
		{"https://buildkite.com/kbnode/kernelbot/builds/1", 2, "is not a run ID; kbnode submit prints them"},
	} {
		if got := kbnode(t, append([]string{"submit", "--follow"}, strings.Fields(tt.args)...)...); got.code != tt.code || !strings.Contains(got.err, tt.says) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}
