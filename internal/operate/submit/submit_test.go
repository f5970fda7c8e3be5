package submit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	good = `{"success":true,"error":"","system":{"gpu":"NVIDIA B200","device_count":1},"runs":{"test":{"start":"2026-01-01T00:00:00","end":"2026-01-01T00:00:01","compilation":null,"run":{"success":true,"passed":true,"command":"python3 eval.py","stdout":"","stderr":"","exit_code":0,"duration":1.5,"result":{"test-count":"1","test.0.status":"pass","check":"pass"}},"profile":null}}}`
	bad  = `{"success":true,"error":"","system":{},"runs":{"test":{"compilation":{"nvcc_found":true,"success":false,"stderr":"a.cu(3): error","exit_code":1},"run":null,"profile":null}}}`
)

// office is a fake Buildkite with agents, on a test's own clock.
type office struct {
	*bktest.Server
	client *buildkite.Client
	log    []string
}

// open returns an office whose agents run do for each job. Call it in a synctest bubble.
func open(t *testing.T, o bktest.Options, agents int, do func(ctx context.Context, w *bktest.Work)) *office {
	t.Helper()
	s := bktest.New(o)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { time.Sleep(2 * time.Minute); stop(); synctest.Wait() }) // delayed calls arrive first
	for i := range agents {
		err := s.Employ(ctx, bktest.Worker{Name: fmt.Sprintf("n-gpu%d", i), Tags: []string{"queue=b200", fmt.Sprintf("gpu-index=%d", i)}, Do: do})
		must.Do(t, err)
	}
	bk := &office{Server: s}
	var mu sync.Mutex
	client, err := buildkite.New(buildkite.Options{
		URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true,
		Log: func(why string, pause time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			bk.log = append(bk.log, fmt.Sprintf("%s; again in %s", why, pause.Round(time.Second)))
		},
	})
	must.Do(t, err)
	bk.client = client
	return bk
}

func job(name string) Job {
	return Job{RunID: "run-" + name, Build: buildkite.NewBuild{
		Commit: "HEAD", Branch: "main", Message: name, Env: map[string]string{"WHO": name},
		Steps: []any{map[string]any{"command": "x", "agents": map[string]string{"queue": "b200"}, "artifact_paths": "result.json"}},
	}}
}

func (bk *office) run(ctx context.Context, o Options, jobs ...Job) []Outcome {
	o.Org, o.Pipeline = "kbnode", "kernelbot"
	return Run(ctx, bk.client, o, jobs)
}

// takes returns a job that runs for some seconds and leaves these files.
func takes(seconds int, exit int, files map[string]string) func(context.Context, *bktest.Work) {
	return func(ctx context.Context, w *bktest.Work) {
		select {
		case <-ctx.Done():
			w.Exit = 143
		case <-time.After(time.Duration(seconds) * time.Second):
			w.Exit = exit
		}
		w.Files = files
	}
}

// TestOutcomes runs one job after another, each with its own way to end.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	result := func(text string) map[string]string { return map[string]string{"result.json": text} }
	for _, tt := range []struct {
		name    string
		do      func(context.Context, *bktest.Work)
		steps   any
		options bktest.Options
		limits  Options
		runs    []string
		verdict Verdict
		reason  string
	}{
		{name: "passes", do: takes(20, 0, result(good)), verdict: Passed, reason: "Passed: test"},
		{name: "does not compile", do: takes(20, 0, result(bad)), verdict: NotPassed, reason: "Not passed: test: does not compile"},
		{name: "a failed build has a result", do: takes(20, 1, result(bad)), verdict: NotPassed, reason: "Not passed: test: does not compile"},
		{name: "a failed build that says it passed", do: takes(20, 7, result(good)), verdict: NotPassed, reason: "its result says that it passed, but the job failed; see its log (exit status 7)"},
		{name: "the runner's own error", do: takes(1, 1, result(`{"success":false,"error":"no payload","runs":{},"system":{}}`)), verdict: NoResult, reason: "No verdict: no payload"},
		{name: "nothing left", do: takes(1, 0, nil), verdict: NoResult, reason: "the job passed but left no result.json; add it to the step's artifact_paths"},
		{name: "fails with nothing left", do: takes(1, 255, nil), verdict: NoResult, reason: "the node could not run the job"},
		{name: "no JSON", do: takes(1, 0, result("<html>")), verdict: NoResult, reason: "read result.json: it is not one JSON document; it may be cut off"},
		{name: "too slow", do: takes(3600, 0, nil), limits: Options{Target: Target{RunTime: 5 * time.Minute}}, verdict: TimedOut, reason: "it did not end within 5m0s"},
		{name: "nobody takes it", steps: []any{map[string]any{"command": "x", "agents": map[string]string{"queue": "none"}}}, limits: Options{Target: Target{QueueTime: 10 * time.Minute}}, verdict: TimedOut, reason: "no agent took it within 10m0s"},
		{name: "the agent is lost", do: func(_ context.Context, w *bktest.Work) { w.Gone = true }, verdict: NoResult, reason: "agent n-gpu0 was lost during the job"},
		{name: "another evaluation", do: takes(1, 0, result(good)), runs: []string{"test", "leaderboard"}, verdict: NotPassed, reason: "its result has no run leaderboard; check that the pipeline evaluates what it is sent"},
		{name: "no such step", steps: []any{map[string]any{"wait": nil}}, verdict: NotCreated, reason: "create build: Buildkite returned 422"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bk := open(t, tt.options, 1, tt.do)
				j := job("a")
				j.Runs = tt.runs
				if tt.steps != nil {
					j.Build.Steps = tt.steps
				}
				got := bk.run(t.Context(), tt.limits, j)[0]
				if got.Verdict != tt.verdict || !strings.HasPrefix(got.Reason, tt.reason) {
					t.Errorf("%s: %s", got.Verdict, got.Reason)
				}
				for _, b := range bk.Builds() {
					if !b.Finished() {
						t.Errorf("build %d is %s", b.Number, b.State)
					}
				}
				if tt.name == "passes" && (got.Run != 20 || got.Agent != "n-gpu0" || got.Result == nil || got.URL == "") {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// TestInterrupted checks that a running job is canceled when the user gives up, and its result
// fetched.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 1, takes(3600, 0, map[string]string{"result.json": bad}))
		ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
		defer interrupt()
		results := 0
		for i, out := range bk.run(ctx, Options{}, job("a"), job("b")) {
			if state := bk.Builds()[i].State; out.Verdict != Cancelled || state != "canceled" {
				t.Errorf("%+v, %s", out, state)
			}
			if out.Result != nil {
				results++
			}
		}
		if results == 0 { // the second may have begun when the first ended
			t.Error("no result")
		}
	})
}

// TestInterruptedCreation checks that a build is not left behind if the interrupt comes while it
// is created.
func TestInterruptedCreation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 0, nil)
		bk.Inject(bktest.Fault{Route: createRoute, Delay: 3 * time.Second})
		ctx, interrupt := context.WithTimeout(t.Context(), time.Second)
		defer interrupt()
		got := bk.run(ctx, Options{}, job("a"))[0]
		if b := bk.Builds(); got.Verdict != Cancelled || len(b) != 1 || b[0].State != "canceled" {
			t.Errorf("%+v, %+v", got, b)
		}
	})
}

const (
	createRoute   = "POST /v2/organizations/{org}/pipelines/{pipeline}/builds"
	findRoute     = "GET /v2/organizations/{org}/pipelines/{pipeline}/builds"
	listRoute     = "GET /v2/organizations/{org}/pipelines/{pipeline}/builds/{number}/artifacts"
	downloadRoute = "GET /v2/organizations/{org}/pipelines/{pipeline}/builds/{number}/jobs/{id}/artifacts/{artifact}/download"
	agentsRoute   = "GET /v2/organizations/{org}/agents"
	cancelRoute   = "PUT /v2/organizations/{org}/pipelines/{pipeline}/builds/{number}/cancel"
)

// faults returns everything that may go wrong with a call.
func faults() map[string]bktest.Fault {
	return map[string]bktest.Fault{
		"drop":        {},
		"drop answer": {Perform: true},
		"429":         {Status: 429, Header: http.Header{"Ratelimit-Reset": {"7"}, "Ratelimit-Remaining": {"0"}}},
		"429, bare":   {Status: 429},
		"500":         {Status: 500, Message: "oops"},
		"503 after":   {Status: 503, Perform: true},
		"delay":       {Delay: 20 * time.Second},
		"too late":    {Delay: 70 * time.Second},
		"cut":         {Cut: true},
	}
}

// TestFaults checks that any fault of any call leads to the same end: one build and its result. Of a creation, this
// holds for those that certainly had no effect; TestUnanswered has the others.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, route := range []string{createRoute, findRoute, listRoute, downloadRoute, "GET /store/{key}", agentsRoute} {
		for name, fault := range faults() {
			if route == createRoute && fault.Status != http.StatusTooManyRequests && name != "delay" {
				continue
			}
			t.Run(route+", "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					bk := open(t, bktest.Options{}, 1, takes(30, 0, map[string]string{"result.json": good}))
					fault.Route, fault.Times = route, 2
					bk.Inject(fault)
					_, err := CheckQueue(t.Context(), bk.client, "kbnode", "b200")
					must.Do(t, err)
					got := bk.run(t.Context(), Options{Target: Target{RunTime: time.Hour, QueueTime: time.Hour}}, job("a"))[0]
					if got.Verdict != Passed {
						t.Errorf("%+v, %q", got, bk.log)
					}
					time.Sleep(3 * time.Minute) // delayed calls have arrived
					if b := bk.Builds(); len(b) != 1 || !b[0].Finished() {
						t.Errorf("builds %+v", b)
					}
					if bk.Requests()[route] == 0 {
						t.Errorf("%s was not called", route)
					}
				})
			})
		}
	}
}

// TestQueueOfStandIns refuses a queue whose slots are all out of service: its agents only say why.
func TestQueueOfStandIns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 0, nil)
		must.Do(t, bk.Employ(t.Context(), bktest.Worker{Name: "n-gpu0", Tags: []string{"queue=b200", "out-of-service=drained"}, Do: func(context.Context, *bktest.Work) {}}))
		if _, err := CheckQueue(t.Context(), bk.client, "kbnode", "b200"); err == nil || !strings.Contains(err.Error(), "no agent is connected in queue b200") {
			t.Error(err)
		}
	})
}

// TestNode checks that a node.json that cannot be read is unknown, unlike one that is not there.
func TestNode(t *testing.T) {
	t.Parallel()
	const noisy = `{"schema":2,"noisy":true,"why":["hot"]}`
	for _, tt := range []struct {
		name, node, route string
		fault             bktest.Fault
		err               string
	}{
		{name: "read", node: noisy},
		{name: "absent"},
		{name: "no JSON", node: `{"schema":2,`, err: "read node.json: unexpected end of JSON input"},
		{name: "another type", node: `{"noisy":"yes"}`, err: "read node.json: json: cannot unmarshal string"},
		{name: "too large", node: strings.Repeat(" ", maxNodeFile+1), err: "download node.json: it has 1048577 bytes"},
		{"refused list", noisy, listRoute, bktest.Fault{Status: 403}, "list artifacts of build 1: the API token may not do this"},
		{"refused download", noisy, downloadRoute, bktest.Fault{Status: 403}, "download node.json: the API token may not do this"},
		{"no store", noisy, "GET /store/{key}", bktest.Fault{Status: 404}, "download node.json: the artifact store returned 404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				files := map[string]string{"result.json": good}
				if tt.node != "" {
					files["node.json"] = tt.node
				}
				bk := open(t, bktest.Options{}, 1, takes(1, 0, files))
				if tt.err != "" && tt.route != "" {
					bk.Inject(bktest.Fault{Route: tt.route, Delay: time.Nanosecond}) // of result.json
					tt.fault.Route, tt.fault.Times = tt.route, -1
					bk.Inject(tt.fault)
				}
				j := job("a")
				j.Build.Steps = []any{map[string]any{"command": "x", "agents": map[string]string{"queue": "b200"}, "artifact_paths": "*.json"}}
				got := bk.run(t.Context(), Options{Node: true}, j)[0]
				if got.Verdict != Passed || tt.name == "read" && string(got.Node) != noisy || (got.NodeErr == nil) != (tt.err == "") ||
					tt.err != "" && !strings.HasPrefix(got.NodeErr.Error(), tt.err) {
					t.Errorf("%s, %.60q, %v", got.Verdict, got.Node, got.NodeErr)
				}
			})
		})
	}
}

// TestCancelFaults checks that a failed cancellation is retried, and reported if it cannot
// succeed.
func TestCancelFaults(t *testing.T) {
	t.Parallel()
	all := faults()
	all["502 for good"] = bktest.Fault{Status: 502, Times: -1}
	for name, fault := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bk := open(t, bktest.Options{}, 1, takes(7200, 0, nil))
				fault.Route, fault.Times = cancelRoute, cmp.Or(fault.Times, 2)
				bk.Inject(fault)
				got := bk.run(t.Context(), Options{Target: Target{RunTime: time.Minute}}, job("a"))[0]
				state := bk.Builds()[0].State
				if got.Verdict != TimedOut {
					t.Errorf("%+v", got)
				}
				if lasts := fault.Times < 0; strings.Contains(got.Reason, "it is still running") != lasts || (state == "running") != lasts {
					t.Errorf("%+v, %s", got, state)
				}
				_ = bk.Cancel(1)
			})
		})
	}
}

// TestEndless checks that a build that does not end after it was canceled is given up.
func TestEndless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 1, takes(3600, 0, nil))
		bk.Inject(bktest.Fault{Route: cancelRoute, Status: http.StatusOK}) // which does nothing
		got := bk.run(t.Context(), Options{Target: Target{RunTime: time.Minute}}, job("a"))[0]
		if got.Verdict != TimedOut || got.Reason != "it did not end within 1m0s; it may still be running: it did not end in time after it was canceled" {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Hour)
	})
}

// TestNoAnswer checks that an API that stops answering is given up late, and that the outcome
// says what may still run. An API that refuses to be asked gets no build.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]Verdict{503: Unknown, 429: Unknown, 401: NotCreated} {
		synctest.Test(t, func(t *testing.T) {
			bk := open(t, bktest.Options{}, 1, takes(7200, 0, nil))
			inject := func() { bk.Inject(bktest.Fault{Route: findRoute, Status: status, Times: -1}) }
			if want == NotCreated {
				inject()
			} else {
				time.AfterFunc(10*time.Second, inject)
			}
			began := time.Now()
			got := bk.run(t.Context(), Options{}, job("a"))[0]
			if took := time.Since(began); got.Verdict != want || took > silence+10*time.Minute {
				t.Errorf("%d: %+v after %s", status, got, took)
			}
			if n := len(bk.Builds()); want == NotCreated && n > 0 || want == Unknown && !strings.HasSuffix(got.Reason, "; it may still be running") {
				t.Errorf("%d: %d builds, %s", status, n, got.Reason)
			}
			_ = bk.Cancel(1)
		})
	}
}

// TestUnanswered checks that a build is requested once, and that one whose creation was not answered is reported
// with what to look for, unless a poll saw it in the meantime.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	unknown := []string{"create build: ", "unknown whether it was created; look for run ID run-a"}
	for _, tt := range []struct {
		name    string
		fault   bktest.Fault
		verdict Verdict
		reason  []string
		builds  int
	}{
		{"drop", bktest.Fault{}, Unknown, unknown, 0},
		{"drop answer", bktest.Fault{Perform: true}, Unknown, unknown, 1},
		{"500", bktest.Fault{Status: 500}, Unknown, unknown, 0},
		{"503 after", bktest.Fault{Status: 503, Perform: true}, Unknown, unknown, 1},
		{"too late", bktest.Fault{Delay: 70 * time.Second}, Unknown, unknown, 1},
		{"cut", bktest.Fault{Cut: true}, Unknown, unknown, 1},
		{"found before", bktest.Fault{Perform: true, Delay: 10 * time.Second}, Passed, nil, 1},
		{"ended before", bktest.Fault{Perform: true, Delay: 50 * time.Second}, Passed, nil, 1},
		{"given up before", bktest.Fault{Delay: 50 * time.Second}, Unknown, []string{"outcome unknown: list builds: ", unknown[1]}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bk := open(t, bktest.Options{}, 1, takes(30, 0, map[string]string{"result.json": good}))
				tt.fault.Route = createRoute
				bk.Inject(tt.fault)
				if tt.name == "given up before" {
					time.AfterFunc(time.Second, func() { bk.Inject(bktest.Fault{Route: findRoute, Status: 401}) })
				}
				got := bk.run(t.Context(), Options{}, job("a"))[0]
				if got.Verdict != tt.verdict {
					t.Errorf("%+v", got)
				}
				must.Contain(t, got.Reason, tt.reason...)
				time.Sleep(3 * time.Minute) // delayed calls have arrived
				if n := bk.Requests()[createRoute]; n != 1 || len(bk.Builds()) != tt.builds {
					t.Errorf("%d requests, builds %+v", n, bk.Builds())
				}
			})
		})
	}
}

// TestRebuilt checks that a build that someone rebuilt in Buildkite, which copies its data, is left alone.
func TestRebuilt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 2, func(ctx context.Context, w *bktest.Work) {
			if w.Env["WHO"] == "again" {
				takes(10, 0, map[string]string{"result.json": bad})(ctx, w)
			} else {
				takes(120, 0, map[string]string{"result.json": good})(ctx, w)
			}
		})
		time.AfterFunc(30*time.Second, func() {
			first, err := bk.client.Build(t.Context(), "kbnode", "kernelbot", 1)
			must.Do(t, err)
			again := job("again").Build
			again.MetaData = first.MetaData
			_, err = bk.client.Create(t.Context(), "kbnode", "kernelbot", again)
			must.Do(t, err)
		})
		got := bk.run(t.Context(), Options{}, job("a"))[0]
		time.Sleep(3 * time.Minute)
		if b := bk.Builds(); got.Verdict != Passed || got.Reason != "Passed: test" || len(b) != 2 || b[1].State != "passed" {
			t.Errorf("%+v, %+v", got, b)
		}
	})
}

// TestRetried checks that a job that waits again after its agent was lost gets its full time
// again.
func TestRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 1, func(_ context.Context, w *bktest.Work) { w.Gone = true })
		time.AfterFunc(10*time.Minute, func() {
			err := bk.Employ(t.Context(), bktest.Worker{Name: "n-gpu1", Tags: []string{"queue=b200"}, Do: takes(240, 0, map[string]string{"result.json": good})})
			if err != nil {
				t.Error(err)
			}
		})
		j := job("a")
		j.Build.Steps = []any{map[string]any{
			"command": "x", "agents": map[string]string{"queue": "b200"}, "artifact_paths": "result.json",
			"retry": map[string]any{"automatic": []any{map[string]any{"exit_status": -1, "limit": 2}}},
		}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		if got := bk.run(ctx, Options{Target: Target{RunTime: 5 * time.Minute, QueueTime: 15 * time.Minute}}, j)[0]; got.Verdict != Passed || got.Agent != "n-gpu1" {
			t.Errorf("%+v", got)
		}
	})
}

// TestHundredInterrupted checks that a hundred interrupted builds are all canceled, despite the
// rate limit.
func TestHundredInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{RateLimit: 50}, 8, takes(3600, 0, nil))
		var jobs []Job
		for i := range 100 {
			jobs = append(jobs, job(fmt.Sprintf("j%d", i)))
		}
		ctx, interrupt := context.WithTimeout(t.Context(), 4*time.Minute)
		defer interrupt()
		for _, out := range bk.run(ctx, Options{}, jobs...) {
			if out.Verdict != Cancelled {
				t.Errorf("%+v", out)
			}
		}
		for _, b := range bk.Builds() {
			if b.State != "canceled" {
				t.Errorf("build %d is %s", b.Number, b.State)
			}
		}
	})
}

// TestRefused checks that a permanent refusal is not retried, and that the message says what to
// do.
func TestRefused(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{401: "refuses the API token", 403: "write_builds", 404: "sees no pipeline ", 413: "smaller payload", 422: "no good"} {
		synctest.Test(t, func(t *testing.T) {
			bk := open(t, bktest.Options{}, 0, nil)
			bk.Inject(bktest.Fault{Route: createRoute, Status: status, Message: "no good", Times: -1})
			got := bk.run(t.Context(), Options{}, job("a"))[0]
			if n := bk.Requests()[createRoute]; got.Verdict != NotCreated || !strings.Contains(got.Reason, want) || n != 1 {
				t.Errorf("%d: %+v after %d requests", status, got, n)
			}
		})
	}
}

// TestHundred runs a hundred submissions on eight slots, with Buildkite's rate limit and with
// faults: each is requested and runs once and has its own result, unless its creation was not answered, and no
// request exceeds the limit.
func TestHundred(t *testing.T) {
	t.Parallel()
	for _, faulty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bk := open(t, bktest.Options{RateLimit: 50}, 8, func(_ context.Context, w *bktest.Work) {
				time.Sleep(15 * time.Second)
				w.Files["result.json"] = strings.Replace(good, "NVIDIA B200", w.Env["WHO"], 1)
			})
			if faulty {
				time.AfterFunc(time.Second, func() {
					for _, f := range []bktest.Fault{{}, {Perform: true}, {Status: 500}, {Cut: true}, {Delay: 5 * time.Second}} {
						for _, route := range []string{createRoute, findRoute, listRoute, downloadRoute, "GET /store/{key}"} {
							f.Route, f.Times = route, 2
							bk.Inject(f)
						}
					}
				})
			}
			var jobs []Job
			for i := range 100 {
				jobs = append(jobs, job(fmt.Sprintf("j%d", i)))
			}
			agents, passed := map[string]bool{}, 0
			for i, out := range bk.run(t.Context(), Options{}, jobs...) {
				if faulty && out.Verdict == Unknown && strings.HasSuffix(out.Reason, "look for run ID run-"+jobs[i].Build.Message) {
					continue
				}
				passed++
				agents[out.Agent] = true
				if out.Verdict != Passed || out.Result == nil || out.Result.System.GPU != fmt.Sprintf("j%d", i) {
					t.Errorf("%d: %+v", i, out)
				}
			}
			ran := map[string]int{}
			for _, b := range bk.Builds() {
				if b.State == "passed" {
					ran[b.MetaData["run_id"]]++
				} else if b.State != "canceled" {
					t.Errorf("build %d is %s", b.Number, b.State)
				}
			}
			for id, n := range ran {
				if n != 1 {
					t.Errorf("%s ran %d times", id, n)
				}
			}
			if n := bk.Requests()[createRoute]; n != 100 || len(ran) < passed || len(agents) < 8 {
				t.Errorf("%d requested, %d ran on %d agents", n, len(ran), len(agents))
			}
			if passed < 92 || !faulty && passed < 100 {
				t.Errorf("%d passed", passed)
			}
			if over := bk.Over(); over > 0 {
				t.Errorf("%d requests over the limit", over)
			}
		})
	}
}

// TestOutcomeJSON checks that the JSON of an outcome contains no secret and keeps its keys.
func TestOutcomeJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Outcome{RunID: "r", Verdict: Passed, Raw: []byte("x")})
	must.Do(t, err)
	want := `{"run_id":"r","verdict":"passed","reason":"","queue_seconds":0,"run_seconds":0}`
	if string(text) != want {
		t.Errorf("%s", text)
	}
}

func TestRunIDs(t *testing.T) {
	t.Parallel()
	ids := []string{NewRunID(), NewRunID()}
	if ids[0] == ids[1] || len(ids[0]) != len("kbnode-")+16 {
		t.Error(ids)
	}
}
