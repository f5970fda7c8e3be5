package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// office returns a fake Buildkite with these agents and tags, which work until the test ends.
func office(t *testing.T, o bktest.Options, agents map[string][]string) *bktest.Server {
	t.Helper()
	s := bktest.New(o)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	for name, tags := range agents {
		must.Do(t, s.Employ(ctx, bktest.Worker{Name: name, Tags: tags, Do: func(ctx context.Context, _ *bktest.Work) { <-ctx.Done() }}))
	}
	return s
}

func TestQueueCommand(t *testing.T) {
	s := office(t, bktest.Options{}, map[string][]string{
		"n-gpu0": {"queue=b200", "gpu-index=0", "gpu-model=NVIDIA-B200", "node=n", "kbnode=1.0"}, "x": {"queue=h100"},
	})
	useBuildkite(t, s)
	for _, tt := range []struct {
		args  []string
		fault *bktest.Fault
		code  int
		out   string
		err   string
	}{
		{args: nil, out: "b200: 1 agent, 1 idle, 0 busy; no jobs waiting\n" +
			"AGENT   STATE  FOR  JOB  GPU  MODEL        NODE  VERSION  KBNODE\n" +
			"n-gpu0  idle   -    -    0    NVIDIA-B200  n     3.76.2   1.0\n\n" +
			"h100: 1 agent, 1 idle, 0 busy; no jobs waiting\n" +
			"AGENT  STATE  FOR  JOB  GPU  MODEL  NODE    VERSION  KBNODE\n" +
			"x      idle   -    -    -    -      host-x  3.76.2   -\n"},
		{args: []string{"h10"}, code: term.ExitNo,
			out: "h10: 0 agents, 0 idle, 0 busy; no jobs waiting\n", err: `no agent is connected in queue "h10"; queues with agents: h100, b200`},
		{args: []string{"--org", "gpumode"}, code: term.ExitNo, err: "the API token has no access to this organization, or the pipeline does not exist; check the names"},
		{args: nil, fault: &bktest.Fault{Route: "GET /v2/organizations/{org}/agents", Status: http.StatusForbidden}, code: term.ExitNo, err: "give it the scope read_agents"},
		{args: nil, fault: &bktest.Fault{Route: "GET /v2/organizations/{org}/builds", Status: http.StatusForbidden}, code: term.ExitNo, err: "give it the scope read_builds"},
	} {
		if tt.fault != nil {
			s.Inject(*tt.fault)
		}
		got := kbnode(t, append([]string{"queue"}, tt.args...)...)
		if diff := cmp.Diff(tt.out, got.out); diff != "" || got.code != tt.code || !strings.Contains(got.err, tt.err) || (tt.err == "") != (got.err == "") {
			t.Errorf("%q: code %d, %s; want %s; %s", tt.args, got.code, got.err, tt.err, diff)
		}
	}

	var report buildkite.QueueReport
	got := kbnode(t, "queue", "none", "--json")
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != term.ExitNo || report.Organization != "kbnode" || len(report.Queues) != 1 || report.Queues[0].Agents == nil {
		t.Errorf("%+v, %v", got, err)
	}

	// kernelbot's RunnerQueueStatus(**status) takes exactly these keys.
	for name, want := range map[string]string{
		"b200": `"runner_queue": {"runner": "Buildkite", "gpu": "B200", "queued_jobs": 0, "running_jobs": 0, "available_runners": 1, "status": "available", "error": null}`,
		"none": `"runner_queue": {"runner": "Buildkite", "gpu": "NONE", "queued_jobs": 0, "running_jobs": 0, "available_runners": 0, "status": "unavailable", "error": "no agent takes jobs of queue none"}`,
	} {
		must.Contain(t, strings.Join(strings.Fields(kbnode(t, "queue", name, "--json").out), " "), strings.ReplaceAll(strings.ReplaceAll(want, "{", "{ "), "}", " }"))
	}

	useBuildkite(t, office(t, bktest.Options{}, nil))
	if got := kbnode(t, "queue"); got.code != term.ExitNo || got.out != "" || got.err != "kbnode: no agent is connected in any queue of kbnode\n" {
		t.Errorf("%+v", got)
	}
}

// TestQueueTable checks what people see of each state at the width of a terminal.
func TestQueueTable(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tags := func(k int) []string {
		return []string{"queue=b200", fmt.Sprintf("gpu-index=%d", k), "gpu-model=NVIDIA-B200", "node=b200-node-07", "kbnode=1.4.0", "slots=8"}
	}
	job := func(n int) *buildkite.Job {
		return &buildkite.Job{ID: "j", State: "running", URL: fmt.Sprintf("https://buildkite.com/o/kernelbot/builds/%d#j", n), Started: now.Add(-70 * time.Minute)}
	}
	queue := buildkite.Queues([]buildkite.Agent{
		{Name: "b200-node-07-gpu0", Version: "3.76.2", Tags: tags(0)},
		{Name: "b200-node-07-gpu1", Version: "3.76.2", Tags: tags(1), Job: job(1201)},
		{Name: "b200-node-07-gpu2", Version: "3.76.2", Tags: tags(2), Job: job(1202), Connection: buildkite.Stopping},
		{Name: "b200-node-07-gpu3", Version: "3.76.2", Tags: tags(3), Paused: true, PausedNote: "new fan\x1b[2J"},
		{Name: "somebody-elses-agent-with-a-long-name-1", Version: "3.76.2", Tags: []string{"queue=b200"}, Hostname: "ip-10-0-0-1", Job: &buildkite.Job{ID: "0190c0de", State: "assigned"}},
	}, []buildkite.Build{{Jobs: []buildkite.Job{
		{Type: "script", State: "scheduled", Rules: []string{"queue=b200"}, Runnable: now.Add(-4 * time.Minute)},
		{Type: "script", State: "scheduled", Rules: []string{"queue=b200", "gpu-index=9"}, Runnable: now.Add(-3 * time.Minute)},
	}}})[0]
	var out bytes.Buffer
	operator.PrintQueues(&out, buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}})
	golden(t, "queue.txt", out.String())
	for _, width := range []int{80, 70, 40} {
		drawn := operator.QueueTable(&out, queue, now).Draw(width)
		if n := text.LongestLineLen(drawn); n > max(width, 66) {
			t.Errorf("%d columns of %d:\n%s", n, width, drawn)
		}
		must.Contain(t, drawn, "AGENT", "STATE", "JOB", "GPU", "kernelbot#1202", "somebody-else…-a-long-name-1", "b200-node-07-gpu3")
	}
}
