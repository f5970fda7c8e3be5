package buildkite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestQueues lists agents of the stand-in, busy and idle, and jobs that wait for one.
func TestQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{})
		ctx, stop := context.WithCancel(t.Context())
		t.Cleanup(func() { stop(); synctest.Wait() })
		work := func(ctx context.Context, _ *bktest.Work) { <-ctx.Done() }
		for _, w := range []bktest.Worker{
			{Name: "n-gpu1", Tags: []string{"queue=b200", "gpu=b200", "gpu-index=1", "node=n", "gpu-uuid=GPU-1", "gpu-model=NVIDIA-B200", "numa=0", "kbnode=1.2.3", "slots=3"}},
			{Name: "n-gpu0", Tags: []string{"queue=b200", "gpu=b200", "gpu-index=0", "node=n", "slots=2"}},
			{Name: "other", Tags: []string{"queue=default", "slots=1"}},
		} {
			w.Do = work
			must.Do(t, s.Employ(ctx, w))
		}
		time.Sleep(time.Second / 2) // between two pings of the workers
		begin := time.Now().UTC()
		c, err := New(Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true})
		must.Do(t, err)
		create := func(agents map[string]string, priority int) Build {
			b, err := c.Create(ctx, "kbnode", "kernelbot", NewBuild{Commit: "HEAD", Branch: "main", Steps: []any{map[string]any{"command": "x", "label": "evaluate", "agents": agents, "priority": priority}}})
			must.Do(t, err)
			return b
		}
		running := create(map[string]string{"queue": "b200", "gpu-index": "1"}, 0)
		time.Sleep(5 * time.Second)
		var waiting []WaitingJob
		for i, agents := range []map[string]string{
			{"queue": "b200", "gpu-index": "1"}, {"queue": "b200", "gpu-index": "9"}, {"queue": "b200", "gpu-index": "*", "spin": "up"}, {"queue": "empty"},
		} {
			j := create(agents, i%2).Jobs[0]
			waiting = append(waiting, WaitingJob{ID: j.ID, Name: "evaluate", URL: j.URL, Pipeline: "kernelbot", Build: i + 2, Priority: i % 2, Since: j.Runnable})
			time.Sleep(time.Second)
		}
		agents, err := c.Agents(ctx, "kbnode")
		must.Do(t, err)
		builds, err := c.Unfinished(ctx, "kbnode")
		must.Do(t, err)
		waiting[0], waiting[1] = waiting[1], waiting[0] // the one with the higher priority is next
		now := time.Now().UTC()
		zero, one := 0, 1
		job := running.Jobs[0]
		want := []Queue{
			{
				Name: "b200",
				Agents: []QueueAgent{
					{Name: "n-gpu0", State: Idle, Node: "n", GPUIndex: &zero, GPUModel: "b200", AgentVersion: "3.76.2"},
					{
						Name: "n-gpu1", State: Busy, Node: "n", GPUIndex: &one, GPUModel: "NVIDIA-B200", GPUUUID: "GPU-1", NUMA: "0", AgentVersion: "3.76.2", KbnodeVersion: "1.2.3",
						Job: &QueueJob{ID: job.ID, Name: "evaluate", State: "running", URL: "http://buildkite.test/kbnode/kernelbot/builds/1#" + job.ID, Pipeline: "kernelbot", Build: 1, Started: begin.Add(time.Second / 2)},
					},
				},
				Nodes:   []QueueNode{{Node: "n", Tagged: true, Agents: 2, Slots: 3, Idle: 1, Busy: 1, Out: []QueueSlot{{State: Missing}}, KbnodeVersion: "1.2.3", LastJob: now}},
				Waiting: Waiting{Jobs: 3, Oldest: begin.Add(5 * time.Second), Unmatched: 2, Missing: []string{"gpu-index=9", "spin=up"}, List: waiting[:3]},
			},
			{
				Name: "default", Agents: []QueueAgent{{Name: "other", State: Idle, Node: "host-other", AgentVersion: "3.76.2"}},
				Nodes: []QueueNode{{Node: "host-other", Agents: 1, Slots: 1, Idle: 1}},
			},
			{Name: "empty", Agents: []QueueAgent{}, Nodes: []QueueNode{}, Waiting: Waiting{Jobs: 1, Oldest: begin.Add(8 * time.Second), Unmatched: 1, List: waiting[3:]}},
		}
		must.Equal(t, want, Queues(agents, builds, now))
	})
}

// TestIdleWhileJobsWait has a queue paused in Buildkite: the report says so, with the note, once a job has waited for a minute
// that an idle agent could take. A token that may not read it gets what it lacks.
func TestIdleWhileJobsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{Queues: []string{"b200", "h100", "a100"}, Paused: map[string]string{"b200": "until the\x1b[2J launch", "h100": ""}})
		ctx, stop := context.WithCancel(t.Context())
		t.Cleanup(func() { stop(); synctest.Wait() })
		for _, queue := range []string{"b200", "h100", "a100"} {
			must.Do(t, s.Employ(ctx, bktest.Worker{Name: queue, Tags: []string{"queue=" + queue, "slots=1"}, Do: func(context.Context, *bktest.Work) {}}))
			_, err := s.Submit(bktest.NewBuild{Steps: []any{map[string]any{"command": "x", "agents": map[string]string{"queue": queue}}}})
			must.Do(t, err)
		}
		c, err := New(Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true})
		must.Do(t, err)
		why := func() string {
			r, _, err := c.ReadQueues(ctx, "kbnode")
			must.Do(t, err)
			var all []string
			for _, q := range r.Queues {
				all = append(all, q.Name+": "+q.WhyIdle)
			}
			return strings.Join(all, "\n")
		}
		time.Sleep(30 * time.Second)
		must.Equal(t, "a100: \nb200: \nh100: ", why())
		time.Sleep(time.Minute)
		must.Equal(t, "a100: \nb200: the queue is paused in Buildkite: until the launch\nh100: the queue is paused in Buildkite (Agents, the cluster, Queues)", why())
		s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/clusters", Status: http.StatusForbidden})
		must.Contain(t, why(), "h100: the queue may be paused in Buildkite: ", "read_clusters")
	})
}

// TestIdleInManyClusters does not say that a queue is not paused if some clusters were not asked.
func TestIdleInManyClusters(t *testing.T) {
	t.Parallel()
	for clusters, want := range map[int]string{
		maxClusters: "the queue is not paused; ", maxClusters + 1: "the queue may be paused in Buildkite, in a cluster that was not asked",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := bktest.New(bktest.Options{Queues: []string{"b200"}, Clusters: make([]string, clusters)})
			ctx, stop := context.WithCancel(t.Context())
			t.Cleanup(func() { stop(); synctest.Wait() })
			must.Do(t, s.Employ(ctx, bktest.Worker{Name: "a", Tags: []string{"queue=b200", "slots=1"}, Do: func(context.Context, *bktest.Work) {}}))
			c, err := New(Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true})
			must.Do(t, err)
			r := QueueReport{Time: time.Now(), Organization: "kbnode", Queues: []Queue{{Name: "b200"}}}
			r.Queues[0].Waiting.IdleSince = r.Time.Add(-time.Hour)
			c.explainIdle(ctx, &r)
			must.Contain(t, r.Queues[0].WhyIdle, want)
		})
	}
}

func TestAgentStates(t *testing.T) {
	t.Parallel()
	if q := Queues([]Agent{{Job: &Job{State: "passed"}}}, nil, time.Time{})[0]; q.Count(Idle) != 1 {
		t.Errorf("%+v", q)
	}
	for want, a := range map[string]Agent{
		Idle: {}, Busy: {Job: &Job{}}, Paused: {Paused: true}, Stopping: {Connection: Stopping, Paused: true}, Draining: {Job: &Job{}, Connection: Stopping},
	} {
		a.Tags = []string{"queue=a", "queue=b", "queue=a"}
		got := Queues([]Agent{a}, nil, time.Time{})
		if len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" || got[0].Count(want) != 1 || len(got[1].Agents) != 1 {
			t.Errorf("%s: %+v", want, got)
		}
	}
	if q := Queues([]Agent{{Job: &Job{}, Paused: true}}, nil, time.Time{})[0]; q.Count(Draining) != 1 || q.Count(Busy, Draining) != 1 {
		t.Errorf("%+v", q)
	}
}

// TestRunnerQueue counts an agent that takes no more jobs only for the job that it still runs.
func TestRunnerQueue(t *testing.T) {
	t.Parallel()
	q := Queue{Name: "b200", Waiting: Waiting{Jobs: 5}}
	for _, state := range []string{Idle, Busy, Busy, Draining, Paused, Stopping} {
		q.Agents = append(q.Agents, QueueAgent{State: state})
	}
	must.Equal(t, &RunnerQueue{Runner: "Buildkite", GPU: "B200", Queued: 5, Running: 3, Available: 3, Status: "available"}, q.runnerQueue())
	q.Agents = q.Agents[3:]
	if r := q.runnerQueue(); r.Running != 1 || r.Available != 0 || r.Status != "unavailable" || r.Error == nil {
		t.Errorf("%+v", r)
	}
}

// TestPriority reads what Buildkite's client reads, and does without anything else.
func TestPriority(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Priority{`{"number": 7}`: 7, `{"number": -1}`: -1, `null`: 0, `7`: 0, `{}`: 0, `"high"`: 0} {
		var j Job
		must.Do(t, json.Unmarshal([]byte(`{"id": "j", "priority": `+text+`}`), &j))
		must.Equal(t, Job{ID: "j", Priority: want}, j)
	}
}

// TestQueuesOfOthers checks that text from others cannot control a terminal, is
// bounded, and is never taken for more than text.
func TestQueuesOfOthers(t *testing.T) {
	t.Parallel()
	evil := "\x1b]0;x\x07\u202e\u009b2J\n" + strings.Repeat("é", 500)
	agent := Agent{
		Name: evil, Hostname: evil, Version: evil, Paused: true, PausedNote: evil,
		Tags: []string{evil, "queue=" + evil, "gpu-index=" + evil, "gpu-index=-1", "gpu-model=" + evil, "kbnode=" + evil, "node=" + evil, "gpu-uuid=" + evil, "numa=" + evil},
		Job:  &Job{ID: evil, Name: evil, State: evil, URL: "https://x/o/" + evil + "/builds/99999999999999999999"},
	}
	builds := []Build{{Jobs: []Job{
		{ID: "a", Type: "script", State: "scheduled", Rules: []string{"queue=" + evil, "*", "x=" + evil}},
		{ID: "b", Type: "script", State: "running"},
		{ID: "c", Type: "waiter", State: "scheduled"},
		{ID: evil, Type: "script", State: "scheduled"}, // taken since then
	}}}
	got := Queues([]Agent{agent}, builds, time.Time{})
	if len(got) != 1 || got[0].Waiting.Jobs != 1 || got[0].Waiting.Unmatched != 1 || got[0].Agents[0].GPUIndex != nil || got[0].Agents[0].Job.Build != 0 {
		t.Errorf("%+v", got)
	}
	text := fmt.Sprintf("%+v %+v", got, *got[0].Agents[0].Job)
	if strings.ContainsAny(text, "\x1b\x07\u202e\u009b\n") || utf8.RuneCountInString(text) > 3000 {
		t.Errorf("%q", text)
	}
}

func TestBuildOf(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"https://buildkite.com/gpu-mode/kernelbot/builds/12#0190": "kernelbot 12",
		"https://buildkite.com/gpu-mode/kernelbot/builds/12":      "kernelbot 12",
		"https://buildkite.com/gpu-mode/kernelbot/builds/0":       " 0",
		"https://buildkite.com/gpu-mode/kernelbot":                " 0",
		"https://buildkite.com/gpu-mode/../builds/3":              " 0",
		"https://buildkite.com/gpu-mode/k%1bx/builds/3":           " 0",
		"%": " 0",
		"":  " 0",
	} {
		if p, n := BuildOf(page); fmt.Sprint(p, " ", n) != want {
			t.Errorf("%s: %q %d; want %s", page, p, n, want)
		}
	}
}

func TestNear(t *testing.T) {
	t.Parallel()
	for word, want := range map[string][]string{
		"B20O": {"b200", "h100", "mi300"}, "mi300x": {"mi300", "b200", "h100"}, "": {"b200", "h100", "mi300"},
	} {
		must.Equal(t, strings.Join(want, ", "), Named(word, []string{"mi300", "h100", "b200"}))
	}
	must.Equal(t, "gpu-mode", Named("", []string{"gpu-mode\x1b[2J"}))
}

func client(t *testing.T, base, token string) *Client {
	t.Helper()
	c, err := New(Options{URL: base, Token: token})
	must.Do(t, err)
	return c
}

func TestAgentsRefused(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		http.StatusUnauthorized: "refuses the API token",
		http.StatusForbidden:    "read_agents",
		http.StatusNotFound:     `sees no organization "kbnode"`,
		http.StatusFound:        "302",

		http.StatusTooManyRequests: "try again in a minute",
	} {
		elsewhere := 0
		mux := http.NewServeMux()
		mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere++ })
		mux.HandleFunc("/v2/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"message":"no"}`))
		})
		server := httptest.NewServer(mux)
		_, err := client(t, server.URL+"/", "secret-token").Agents(t.Context(), "kbnode")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("status %d: %v", status, err)
		}
		if elsewhere > 0 {
			t.Errorf("status %d: the token was sent elsewhere", status)
		}
		server.Close()
	}
}

// TestAgentsPages reads lists of several pages. A caller that looks for one agent reads until
// it is found, and an endless list is refused: half of it would mean that agents are gone.
func TestAgentsPages(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?page=%d&per_page=100>; rel="next"`, r.Host, r.URL.Path, asked.Add(1)+1))
		_, _ = w.Write([]byte(`[{"name":"a","paused":true,"paused_note":"new fan"}]`))
	}))
	t.Cleanup(server.Close)
	c := client(t, server.URL, "token")
	n := 0
	err := c.EachAgent(t.Context(), "kbnode", func(a Agent) bool {
		n++
		return n < 3 && a.Paused && a.PausedNote == "new fan"
	})
	if err != nil || n != 3 || asked.Load() != 3 {
		t.Errorf("%v after %d agents in %d pages", err, n, asked.Load())
	}
	if got, err := c.Agents(t.Context(), "kbnode"); err == nil || err.Error() != "list agents: there are more than 100 pages" {
		t.Errorf("%d agents, %v", len(got), err)
	}
}

// TestShiftedPages reads lists of which the last of a page is the first of the next, because one was added
// meanwhile. An agent and a build without an ID are themselves.
func TestShiftedPages(t *testing.T) {
	t.Parallel()
	const agent = `{"id":%q,"name":%[1]q,"meta_data":["queue=b200","node=n","slots=6"]}`
	const build = `{"id":%q,"number":1,"jobs":[{"type":"script","state":"scheduled","agent_query_rules":["queue=b200"]}]}`
	r, _, err := patient(t, server(func(r *http.Request) (int, map[string]string, string) {
		pages, one := map[string][]string{"1": {"d", "c", ""}, "2": {"c", "b", ""}}, agent
		if strings.HasSuffix(r.URL.Path, "/builds") {
			one = build
		}
		page := r.URL.Query().Get("page")
		var all []string
		for _, id := range pages[page] {
			all = append(all, fmt.Sprintf(one, id))
		}
		next := map[string]string{"Link": `<http://buildkite.test/v2?page=2>; rel="next"`}
		if page == "2" {
			next = nil
		}
		return 200, next, "[" + strings.Join(all, ",") + "]"
	})).ReadQueues(t.Context(), "o", "b200")
	must.Do(t, err)
	if q := r.Queues[0]; len(q.Agents) != 5 || q.Waiting.Jobs != 5 || len(q.Nodes) != 1 || len(q.Nodes[0].Out) != 1 {
		t.Errorf("%+v", q)
	}
}

// TestStandIns counts a slot once while its agent takes the place of the one that stood in for it, and no agent that stands
// in among those that a waiting job may get.
func TestStandIns(t *testing.T) {
	t.Parallel()
	agent := func(k int, more ...string) Agent {
		return Agent{Name: fmt.Sprintf("n-gpu%d", k), Hostname: "h", Tags: append([]string{"queue=q", "node=n", "slots=2", fmt.Sprintf("gpu-index=%d", k)}, more...)}
	}
	drained := agent(1, "out-of-service=drained", "out-since=2026-03-01T12:00:00Z")
	drained.Paused, drained.PausedNote, drained.PausedAt = true, "by operator: new fan", time.Now()
	builds := []Build{{Jobs: []Job{{ID: "j", Type: "script", State: "scheduled", Rules: []string{"queue=q", "gpu-index=1"}}}}}

	q := Queues([]Agent{agent(0), drained}, builds, time.Now())[0]
	must.Equal(t, []QueueNode{{Node: "n", Tagged: true, Agents: 1, Slots: 2, Idle: 1, Out: []QueueSlot{{Slot: "gpu1", State: "drained", Reason: "by operator: new fan", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}}}, q.Nodes)
	must.Equal(t, []string{"gpu-index=1"}, q.Waiting.Missing)

	q = Queues([]Agent{agent(0), drained, agent(1)}, builds, time.Now())[0]
	must.Equal(t, []QueueNode{{Node: "n", Tagged: true, Agents: 2, Slots: 2, Idle: 2}}, q.Nodes)
	must.Equal(t, 0, q.Waiting.Unmatched)
}
