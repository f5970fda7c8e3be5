package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
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
		{args: nil, out: "NODE  SLOTS  IDLE  BUSY  OUT  LAST JOB  KBNODE  OUT OF SERVICE\n" +
			"n     1      1     0     0    -         1.0     -\n" +
			"b200: 1 node, 1 slot: 1 idle, 0 busy; no jobs waiting\n\n" +
			"NODE    SLOTS  IDLE  BUSY  OUT  LAST JOB  KBNODE  OUT OF SERVICE\n" +
			"host-x  1      1     0     0    -         -       -\n" +
			"h100: 1 node, 1 slot: 1 idle, 0 busy; no jobs waiting\n"},
		{args: []string{"h100", "b200", "--agents"}, out: "AGENT   STATE  FOR  JOB  GPU  MODEL        NODE  AGENT VERSION  KBNODE\n" +
			"n-gpu0  idle   -    -    0    NVIDIA-B200  n     3.76.2         1.0\n" +
			"b200: 1 node, 1 slot: 1 idle, 0 busy; no jobs waiting\n\n" +
			"AGENT  STATE  FOR  JOB  GPU  MODEL  NODE    AGENT VERSION  KBNODE\n" +
			"x      idle   -    -    -    -      host-x  3.76.2         -\n" +
			"h100: 1 node, 1 slot: 1 idle, 0 busy; no jobs waiting\n"},
		{args: []string{"--node", "host*"}, out: "NODE    SLOTS  IDLE  BUSY  OUT  LAST JOB  KBNODE  OUT OF SERVICE\n" +
			"host-x  1      1     0     0    -         -       -\n" +
			"h100: 1 node, 1 slot: 1 idle, 0 busy; no jobs waiting in the whole queue\n"},
		{args: []string{"--node", "hots-x"}, code: term.ExitNo, err: `no node is named "hots-x"; nodes: host-x, n` + "\n"},
		{args: []string{"--node", "m*", "--agents"}, code: term.ExitNo, err: `no node matches "m*"; nodes: n, host-x` + "\n"},
		{args: []string{"--node", "n-gpu0"}, code: term.ExitNo, err: `no node is named "n-gpu0", but an agent of n; write kbnode queue --node n`},
		{args: []string{"h100", "--node", "n"}, code: term.ExitNo,
			out: "h100: 0 nodes, 0 slots: 0 idle, 0 busy; no jobs waiting in the whole queue\n", err: `no node is named "n" in queue h100; it is in b200`},
		{args: []string{"n"}, code: term.ExitNo,
			out: "n: 0 nodes, 0 slots: 0 idle, 0 busy; no jobs waiting\n", err: `no agent is connected in queue "n"; n is a node: write kbnode queue --node n`},
		{args: []string{"--node", "["}, code: term.ExitUsage, err: `--node "[" is not a pattern`},
		{args: []string{"--forget", "y"}, code: term.ExitUsage, err: `no node "y" was seen`},
		{args: []string{"h10"}, code: term.ExitNo,
			out: "h10: 0 nodes, 0 slots: 0 idle, 0 busy; no jobs waiting\n", err: `no agent is connected in queue "h10"; queues with agents: h100, b200`},
		{args: []string{"--org", "gpumode"}, code: term.ExitNo, err: `the API token sees no organization "gpumode"; check --org`},
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
	got := kbnode(t, "queue", "--node", "hots-x", "--json")
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != term.ExitNo || len(report.Queues) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	got = kbnode(t, "queue", "none", "--json")
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

	t.Setenv("BUILDKITE_API_URL", os.Getenv("BUILDKITE_API_URL")+"/v3")
	must.Contain(t, kbnode(t, "queue").err, "the address ends in /v3")
	t.Setenv("BUILDKITE_API_TOKEN", "")
	t.Setenv("BUILDKITE_AGENT_TOKEN", "secret")
	must.Contain(t, kbnode(t, "queue").err, "no API token is given", "BUILDKITE_AGENT_TOKEN is set, but an agent token is no API token\n")

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
		{ID: "0190ffff", Type: "script", State: "scheduled", Rules: []string{"queue=b200"}, Runnable: now.Add(-4 * time.Minute)},
		{ID: "k", Name: "evaluate", URL: "https://buildkite.com/o/kernelbot/builds/1203#k", Priority: 100, Type: "script", State: "scheduled", Rules: []string{"queue=b200", "gpu-index=9"}, Runnable: now.Add(-3 * time.Minute)},
	}}}, now)[0]
	var out bytes.Buffer
	operator.PrintQueues(&out, buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}}, operator.QueueView{Agents: true})
	golden(t, "queue.txt", out.String())
	for _, width := range []int{80, 70, 40} {
		drawn := operator.QueueTable(&out, queue, now).Draw(width)
		if n := text.LongestLineLen(drawn); n > max(width, 66) {
			t.Errorf("%d columns of %d:\n%s", n, width, drawn)
		}
		must.Contain(t, drawn, "AGENT", "STATE", "JOB", "GPU", "kernelbot#1202", "somebody-else…-a-long-name-1", "b200-node-07-gpu3")
	}
}

// TestNodeTable checks what an operator sees of nodes in each state, and that a terminal of 80 columns shows it.
func TestNodeTable(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var agents []buildkite.Agent
	add := func(node, version string, k int, more ...string) *buildkite.Agent {
		agents = append(agents, buildkite.Agent{
			Name: fmt.Sprintf("%s-gpu%d", node, k),
			Tags: append([]string{"queue=b200", fmt.Sprintf("gpu-index=%d", k), "node=" + node, "kbnode=" + version, "slots=8"}, more...),
		})
		return &agents[len(agents)-1]
	}
	for k := range 8 {
		add("b200-01", "1.4.0", k).Job = &buildkite.Job{ID: "j", State: "running"}
		add("b200-02", "1.4.0", k).LastJob = now.Add(-5 * time.Minute)
		if k < 6 {
			add("b200-03", "1.3.9", k)
		}
		if k != 3 {
			add("b200-07", "1.4.0", k)
		}
	}
	out := add("b200-07", "1.4.0", 3, "out-of-service=parked")
	out.Paused, out.PausedNote = true, "the GPU is lost (Xid 79): reboot the machine; then sudo kbnode resume gpu3"
	for k := range 8 {
		out := add("b200-11", "1.4.0", k, "out-of-service=drained", "out-since=2026-02-28T11:00:00Z")
		out.Paused, out.PausedNote = true, "by operator: new fans"
	}
	queue := buildkite.Queues(agents, nil, now)[0]
	queue.Nodes = append(queue.Nodes, buildkite.QueueNode{Node: "b200-20", Slots: 8, KbnodeVersion: "1.3.0", LastJob: now.Add(-3 * time.Hour), Seen: now.Add(-2 * time.Hour)})
	var printed bytes.Buffer
	operator.PrintQueues(&printed, buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}}, operator.QueueView{})
	golden(t, "queue-nodes.txt", printed.String())
	for _, width := range []int{80, 60} {
		drawn := operator.NodeTable(&printed, queue, now).Draw(width)
		if n := text.LongestLineLen(drawn); n > width {
			t.Errorf("%d columns of %d:\n%s", n, width, drawn)
		}
		must.Contain(t, drawn, "gpu3 parked", "b200-20", "all drained")
	}
}

// TestTwentyNodes has the fleet of a competition: a look at 80 columns and 24 lines says why slot 3 of node 7 takes no jobs.
func TestTwentyNodes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	notes := map[string]string{
		"07 3": "parked|the GPU is lost (Xid 79): reboot the machine; then sudo kbnode resume gpu3",
		"12 0": "drained|by operator: new fan", "12 1": "drained|by operator: new fan",
		"15 6": "failed|buildkite-agent-gpu6 ends at once: the agent token is not valid; write a new one with sudo kbnode install --token-file FILE",
	}
	var agents []buildkite.Agent
	for n := range 20 {
		for k := range 8 {
			node := fmt.Sprintf("%02d", n+1)
			a := buildkite.Agent{Name: fmt.Sprintf("b200-%s-gpu%d", node, k), Tags: []string{"queue=b200", fmt.Sprintf("gpu-index=%d", k), "node=b200-" + node, "kbnode=1.4.0", "slots=8"}}
			if state, note, out := strings.Cut(notes[fmt.Sprintf("%s %d", node, k)], "|"); out {
				a.Tags, a.Paused, a.PausedNote = append(a.Tags, "out-of-service="+state), true, note
			} else if k%2 == 0 {
				a.Job = &buildkite.Job{ID: "j", State: "running"}
			}
			agents = append(agents, a)
		}
	}
	queue := buildkite.Queues(agents, nil, now)[0]
	queue.Nodes[0].OtherVersion, queue.Nodes[0].KbnodeVersion = true, "1.3.9" // a warning, too
	var printed bytes.Buffer
	operator.PrintQueues(&printed, buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}}, operator.QueueView{})
	table := operator.NodeTable(&printed, queue, now).Draw(80)
	if rows := strings.Count(table, "\n"); rows > 21 || text.LongestLineLen(table) > 80 {
		t.Errorf("%d rows:\n%s", rows, table)
	}
	lines := strings.Split(strings.TrimSpace(printed.String()), "\n")
	must.Equal(t, `b200-12 gpu0 gpu1 drained: by operator: new fan
b200-07 gpu3 parked: the GPU is lost (Xid 79): reboot the machine; then sudo kbnode resume gpu3
b200-15 gpu6 failed: buildkite-agent-gpu6 ends at once: the agent token is not valid; write a new one with sudo kbnode install --token-file FILE
warning: b200-01 has kbnode 1.3.9, most nodes 1.4.0
b200: 20 nodes, 160 slots: 78 idle, 78 busy, 4 out of service; no jobs waiting`, strings.Join(lines[21:], "\n"))

	printed.Reset()
	operator.PrintQueues(&printed, buildkite.QueueReport{Time: now, Queues: []buildkite.Queue{queue}}, operator.QueueView{Lines: 23})
	folded := strings.Split(strings.TrimSpace(printed.String()), "\n")
	must.Equal(t, append([]string{"17 more nodes with all slots in service"}, lines[21:]...), folded[4:])
}

// TestShortTerminal has more nodes than a terminal has lines: they share one, unless the table is not for people.
func TestShortTerminal(t *testing.T) {
	agents := map[string][]string{}
	for k := range 60 {
		agents[fmt.Sprintf("n%d-gpu0", k)] = []string{"queue=b200", fmt.Sprintf("node=n%d", k), "slots=1"}
	}
	useBuildkite(t, office(t, bktest.Options{}, agents))
	must.Equal(t, "60 nodes with all slots in service\nb200: 60 nodes, 60 slots: 60 idle, 0 busy; no jobs waiting\n", onTerminal(t, 80, "queue"))
	must.Contain(t, kbnode(t, "queue").out, "n59 ")

	p := newPerson(t, 80)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int)
	args := []string{"queue", "--watch", "--node", "other"}
	go func() { done <- run(ctx, args, p.streams(args...)) }()
	p.waitFor(`no node is named "other"`)
	p.waitFor("\nas of ")
	p.waitFor(", refreshed every 15 seconds\r\n")
	stop()
	<-done
}

// TestGoneNode has a node lose all of its agents between two looks: it is still shown, until it is forgotten.
func TestGoneNode(t *testing.T) {
	useBuildkite(t, office(t, bktest.Options{}, map[string][]string{"n-gpu0": {"queue=b200", "node=n", "slots=2"}, "n-gpu1": {"queue=b200", "node=n", "slots=2"}}))
	state := os.Getenv("XDG_STATE_HOME")
	must.Contain(t, kbnode(t, "queue").out, "b200: 1 node, 2 slots: 2 idle")
	useBuildkite(t, office(t, bktest.Options{}, map[string][]string{"n-gpu1": {"queue=b200", "node=n", "slots=2"}, "m-gpu0": {"queue=h100", "node=m"}}))
	t.Setenv("XDG_STATE_HOME", state)
	must.Contain(t, kbnode(t, "queue").out, "gpu0 missing: no agent is connected for ", "b200: 1 node, 2 slots: 1 idle, 0 busy, 1 out of service")
	useBuildkite(t, office(t, bktest.Options{}, map[string][]string{"m-gpu0": {"queue=h100", "node=m"}}))
	t.Setenv("XDG_STATE_HOME", state)
	for _, args := range [][]string{{"queue"}, {"queue", "b200"}} {
		must.Contain(t, kbnode(t, args...).out, "gone for ", "n gone: no agent is connected for ", "b200: 1 node (1 gone), 2 slots: 0 idle, 0 busy, 2 out of service")
	}
	must.Contain(t, kbnode(t, "queue", "--agents").out, "n gone: no agent is connected for ")
	must.Contain(t, kbnode(t, "queue", "n").err, "n is a node: write kbnode queue --node n")
	if got := kbnode(t, "queue", "b200", "--json").out; strings.Count(got, `"state": "gone"`) != 2 {
		t.Error(got)
	}
	useBuildkite(t, office(t, bktest.Options{}, map[string][]string{"n-gpu0": {"queue=h100", "node=n"}}))
	t.Setenv("XDG_STATE_HOME", state)
	must.Contain(t, kbnode(t, "queue", "b200").out, "n gone: no agent is connected for ", "; the node has agents in queue h100\n")
	useBuildkite(t, office(t, bktest.Options{}, map[string][]string{"m-gpu0": {"queue=h100", "node=m"}}))
	t.Setenv("XDG_STATE_HOME", state)
	if got := kbnode(t, "queue", "--forget", "n"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := kbnode(t, "queue"); strings.Contains(got.out, "b200") {
		t.Errorf("%+v", got)
	}
	// A file that cannot be read is said, and replaced.
	must.Write(t, state, "kbnode/nodes-kbnode.json", "{")
	got := kbnode(t, "queue")
	must.Contain(t, got.err, "read the nodes seen before")
	must.Contain(t, got.out, "h100: 1 node, 1 slot: 1 idle")
	if got := kbnode(t, "queue"); got.err != "" {
		t.Errorf("%+v", got)
	}
}
