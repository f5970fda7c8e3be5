package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
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

func clientOf(t *testing.T, s *bktest.Server, token string) *buildkite.Client {
	t.Helper()
	client, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: token, Network: s.Wire(), Patient: true})
	must.Do(t, err)
	return client
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

	useBuildkite(t, office(t, bktest.Options{}, nil))
	if got := kbnode(t, "queue"); got.code != term.ExitNo || got.out != "" || got.err != "kbnode: no agent is connected in any queue of kbnode\n" {
		t.Errorf("%+v", got)
	}
}

// TestQueueWatch checks that watch prints one line for each change, within the rate limit,
// despite a fault, and until interrupted.
func TestQueueWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := office(t, bktest.Options{RateLimit: 50, PingSeconds: 1}, map[string][]string{"n-gpu0": {"queue=b200"}})
		client := clientOf(t, s, bktest.DefaultAPIToken)
		var out, stderr bytes.Buffer
		v := &operator.QueueView{S: term.Streams{Out: &out, Err: &stderr}, Client: client, Org: "kbnode", Name: "b200", JSON: true}
		ctx, interrupt := context.WithTimeout(t.Context(), 16*time.Minute)
		defer interrupt()
		for _, at := range []time.Duration{55 * time.Second, 355 * time.Second} {
			time.AfterFunc(at, func() {
				_, err := client.Create(ctx, "kbnode", "kernelbot", buildkite.NewBuild{Commit: "HEAD", Branch: "main", Steps: []any{map[string]any{"command": "x", "agents": map[string]string{"queue": "b200"}}}})
				must.Err(t, err, "")
			})
		}
		time.AfterFunc(11*time.Minute, func() {
			s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/builds", Status: http.StatusBadGateway, Times: 8})
		})
		must.Err(t, v.Watch(ctx), "")
		var states []string
		for line := range strings.Lines(out.String()) {
			var r buildkite.QueueReport
			if err := json.Unmarshal([]byte(line), &r); err != nil || len(r.Queues) != 1 {
				t.Fatal(err, line)
			}
			states = append(states, fmt.Sprintf("%d idle, %d busy, %d wait", r.Queues[0].Count(buildkite.Idle), r.Queues[0].Count(buildkite.Busy), r.Queues[0].Waiting.Jobs))
		}
		must.Equal(t, []string{"1 idle, 0 busy, 0 wait", "0 idle, 1 busy, 0 wait", "0 idle, 1 busy, 1 wait"}, states)
		if s.Over() > 0 || !strings.Contains(stderr.String(), "502") {
			t.Errorf("%d requests were refused; %s", s.Over(), stderr.String())
		}
		asked := s.Requests()["GET /v2/organizations/{org}/agents"]
		if asked < 70 || asked > 97 { // in 16 minutes, including the fault
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestQueueWatchDraws checks that each look replaces the previous one, even without an agent.
func TestQueueWatchDraws(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := office(t, bktest.Options{PingSeconds: 1}, map[string][]string{"n-gpu0": {"queue=b200"}})
		client := clientOf(t, s, bktest.DefaultAPIToken)
		var out bytes.Buffer
		v := &operator.QueueView{S: term.Streams{Out: &out, Err: t.Output()}, Client: client, Org: "kbnode", Name: "h100"}
		ctx, interrupt := context.WithTimeout(t.Context(), 25*time.Second)
		defer interrupt()
		must.Err(t, v.Watch(ctx), "")
		frames := strings.Split(out.String(), "\x1b[H\x1b[2J")
		if len(frames) != 4 || frames[0] != "" { // at 0, 10 and 20 seconds
			t.Fatalf("%d frames: %q", len(frames)-1, out.String())
		}
		for _, f := range frames[1:] {
			if !strings.Contains(f, `no agent is connected in queue "h100"; queues with agents: b200`) || !strings.Contains(f, "  kbnode\n") {
				t.Error(f)
			}
		}
	})
}

// TestQueueWatchRefused checks that a refusal ends the watch: waiting does not change a token.
func TestQueueWatchRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := office(t, bktest.Options{}, nil)
		v := &operator.QueueView{S: term.Streams{Out: t.Output(), Err: t.Output()}, Client: clientOf(t, s, "old"), Org: "kbnode", Name: ""}
		if err := v.Watch(t.Context()); err == nil || !strings.Contains(err.Error(), "refuses the API token") {
			t.Error(err)
		}
	})
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
	v := &operator.QueueView{S: term.Streams{Out: &out}}
	v.Print(buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}})
	golden(t, "queue.txt", out.String())
	for _, width := range []int{80, 70, 40} {
		drawn := v.Table(queue, now).Draw(width)
		if n := text.LongestLineLen(drawn); n > max(width, 66) {
			t.Errorf("%d columns of %d:\n%s", n, width, drawn)
		}
		for _, must := range []string{"AGENT", "STATE", "JOB", "GPU", "kernelbot#1202", "somebody-else…-a-long-name-1", "b200-node-07-gpu3"} {
			if !strings.Contains(drawn, must) {
				t.Errorf("%d columns: no %s in\n%s", width, must, drawn)
			}
		}
	}
}
