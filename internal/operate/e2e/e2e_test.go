package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestWell checks a good queue in each mode: every job runs once, and every check is OK.
func TestWell(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes {
		synctest.Test(t, func(t *testing.T) {
			reported := map[string]bool{}
			r, s := node{agents: 8}.prove(t, t.Context(), Options{Mode: mode, On: func(part, name string, st submit.Status) {
				reported[part+", "+name+", "+st.State] = true
			}})
			compare(t, r, nil)
			var names []string
			for _, c := range r.Checks {
				names = append(names, c.Name)
				if c.Name != "side by side" && (c.Agent == "" || c.URL == "" || c.Run < 29 || !strings.HasPrefix(c.RunID, r.RunID+"-")) {
					t.Errorf("%+v", c)
				}
				if strict := c.Profile == "strict" && strings.HasSuffix(c.Saw, "; profile strict"); strict != (c.Part == Evaluation) {
					t.Errorf("the profile is %q: %s", c.Profile, c.Saw)
				}
			}
			want := []string{
				"artifact-test", "submission.py", "wrong.py", "cheat.py", "cheat_equal.py", "cheat_input.py", "cheat_reference.py",
				"job 1", "job 2", "job 3", "job 4", "job 5", "job 6", "job 7", "job 8", "side by side",
			}
			must.Equal(t, want, names)
			must.Equal(t, "8 of 8 jobs ran, up to 8 at the same time, on 8 agents and 8 GPUs", r.Checks[len(r.Checks)-1].Saw)
			if n := len(s.Builds()); n != 15 || !reported["concurrency, job 8, running"] || !reported["evaluation, wrong.py, not passed"] {
				t.Errorf("%d builds, reported %v", n, reported)
			}
		})
	}
}

// TestUnwell breaks one thing at a time. Each fault is found, and hides nothing else.
func TestUnwell(t *testing.T) {
	t.Parallel()
	passes := "failed: it passed and should not have"
	leaves := func(which Kind, result string) node {
		return node{do: func(w *bktest.Work, _ int, kind Kind) {
			if kind == which {
				w.Files["result.json"] = result
			}
		}}
	}
	second := func(old, spoiled string) node { // the result of the second of the concurrent jobs
		return node{do: func(w *bktest.Work, _ int, kind Kind) {
			if text, _, _ := submissionOf(w.Env); kind == isWait && strings.Contains(text, `-2"`) {
				w.Files["result.json"] = strings.Replace(w.Files["result.json"], old, spoiled, 1)
			}
		}}
	}
	for _, tt := range []struct {
		name string
		node node
		o    Options
		want map[string]string
	}{
		{"everything passes", node{do: func(w *bktest.Work, _ int, kind Kind) {
			if kind == Wrong || kind == Cheat {
				w.Files["result.json"] = evaluates(true, "", Modes...)
			}
		}}, Options{}, map[string]string{
			"evaluation, wrong.py": passes, "evaluation, cheat.py": passes, "evaluation, cheat_equal.py": passes, "evaluation, cheat_input.py": passes, "evaluation, cheat_reference.py": passes,
		}},
		{"a wrong one passes in mode test", leaves(Wrong, evaluates(true, "", "test")), Options{Mode: "test"}, map[string]string{"evaluation, wrong.py": passes}},
		{"the ranked run is left out", leaves(Right, evaluates(true, "", "test", "benchmark")), Options{}, map[string]string{"evaluation, submission.py": "failed: the build passed without the run leaderboard"}},
		{"a right one fails", leaves(Right, evaluates(false, "", "test")), Options{}, map[string]string{"evaluation, submission.py": "failed: not passed: test"}},
		{"Python is not there", leaves(Wrong, strings.ReplaceAll(evaluates(false, "", "test"), `"success":true,"passed":false`, `"success":false,"passed":false`)), Options{}, map[string]string{"evaluation, wrong.py": "failed: it did not pass, but not because of its answers: not passed: test"}},
		{"an artifact is lost", node{do: func(w *bktest.Work, _ int, kind Kind) {
			if kind == isArtifact {
				w.Files = nil
			}
		}}, Options{}, map[string]string{"artifact, artifact-test": "failed: no result: the job passed but left no result.json"}},
		{"an artifact is another's", leaves(isArtifact, evaluates(true, "", "test")), Options{}, map[string]string{"artifact, artifact-test": "failed: result.json came back, but is not what the job wrote"}},
		{"the result of another job", second(`-2"`, `-1"`), Options{}, map[string]string{"concurrency, job 2": "failed: its result is another job's: "}},
		{"another GPU than its agent's", second(`"gpu":"","check"`, `"gpu":"GPU-9","check"`), Options{}, map[string]string{"concurrency, job 2": `failed: it was given the GPU "GPU-9", but its agent has "GPU-`}},
		{"two agents with one GPU", node{tags: func(i int) []string {
			return []string{"queue=b200", "node=n", fmt.Sprintf("gpu-index=%d", i), fmt.Sprintf("gpu-uuid=GPU-%d", min(i, 2))}
		}}, Options{}, map[string]string{"concurrency, side by side": "failed: builds "}},
		{"two agents with one index", node{tags: func(i int) []string {
			return []string{"queue=b200", "node=n", fmt.Sprintf("gpu-index=%d", min(i, 2))}
		}}, Options{}, map[string]string{"concurrency, side by side": "failed: builds "}},
		{"agents of nobody's", node{tags: func(int) []string { return []string{"queue=b200"} }}, Options{Parts: []string{Concurrency}}, map[string]string{
			"concurrency, job 1": "failed: cannot tell which GPU it had", "concurrency, job 2": "failed: cannot tell which GPU", "concurrency, job 3": "failed: cannot tell which GPU", "concurrency, job 4": "failed: cannot tell which GPU",
		}},
		{"an agent that takes no jobs", node{before: func(s *bktest.Server, _ *Options) {
			// It stops asking for jobs as soon as it is connected.
			ctx, stop := context.WithCancel(context.Background())
			_ = s.Employ(ctx, bktest.Worker{Name: "n-gpu9", Tags: []string{"queue=b200"}})
			stop()
		}}, Options{Parts: []string{Concurrency}}, map[string]string{
			"concurrency, side by side": "failed: 5 of 5 jobs ran, up to 4 at the same time, on 4 agents and 4 GPUs; 5 agents were free",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tt.node.agents = 4
				r, _ := tt.node.prove(t, t.Context(), tt.o)
				compare(t, r, tt.want)
			})
		})
	}
}

// An agent is away for a moment after its job, just when the concurrent ones are counted.
func TestAgentsThatRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var restart func() // called after the first job, by any agent
		n := node{agents: 4, before: func(s *bktest.Server, o *Options) {
			here, leave := context.WithCancel(t.Context())
			last := bktest.Worker{Name: "n-gpu4", Tags: []string{"queue=b200", "node=n", "gpu-index=4", "gpu-uuid=GPU-4"}}
			restart = sync.OnceFunc(func() {
				// Not before the server has this job's end, and before there is another job.
				time.AfterFunc(time.Millisecond, leave)
				last.Do = func(_ context.Context, w *bktest.Work) { w.Exit = 1 }
				time.AfterFunc(3*time.Minute, func() { must.Do(t, s.Employ(t.Context(), last)) })
			})
			last.Do = func(_ context.Context, w *bktest.Work) {
				pretend(w, o.Problem)
				restart()
			}
			must.Do(t, s.Employ(here, last))
		}, do: func(*bktest.Work, int, Kind) { restart() }}
		r, _ := n.prove(t, t.Context(), Options{Parts: []string{Artifact, Concurrency}})
		if last := r.Checks[len(r.Checks)-1]; !strings.Contains(last.Saw, "of 5 jobs") {
			t.Errorf("%+v", last)
		}
	})
}

// TestEnds checks jobs that do not end on their own.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		node   node
		o      Options
		after  time.Duration // when to interrupt; 0 means never
		checks []string      // the beginnings of verdict and reason
	}{
		{"nobody takes it", node{}, Options{Parts: []string{Artifact, Concurrency}, Target: submit.Target{QueueTime: time.Minute}}, 0, []string{
			"failed: timed out: no agent took it within 1m0s", "failed: no agent in queue b200 takes jobs",
		}},
		{"a lost agent", node{agents: 1, do: func(w *bktest.Work, _ int, _ Kind) { w.Gone = true }}, Options{Parts: []string{Concurrency}}, 0, []string{
			"failed: no result: agent n-gpu0 was lost during the job", "ok: 1 of 1 jobs ran",
		}},
		{"too slow", node{agents: 1, takes: func(int, Kind) time.Duration { return time.Hour }}, Options{Parts: []string{Artifact}, Target: submit.Target{RunTime: time.Minute}}, 0, []string{
			"failed: timed out: it did not end within 1m0s",
		}},
		{"interrupted", node{agents: 2, takes: func(_ int, kind Kind) time.Duration {
			if kind == isArtifact {
				return time.Second
			}
			return time.Hour
		}}, Options{}, time.Minute, []string{
			"ok: ", "not tried: cancelled: interrupted", "not tried: cancelled: interrupted", "not tried: cancelled: interrupted", "not tried: cancelled: interrupted",
			"not tried: cancelled: interrupted", "not tried: cancelled: interrupted", "not tried: interrupted",
		}},
		{"refused", node{agents: 2, before: func(s *bktest.Server, _ *Options) {
			s.Inject(bktest.Fault{Route: "POST /v2/organizations/{org}/pipelines/{pipeline}/builds", Status: http.StatusForbidden, Times: -1})
		}}, Options{Parts: []string{Artifact, Concurrency}}, 0, []string{
			"failed: not created: create build: the API token may not do this; give it the scope write_builds",
			"failed: not created: create build", "failed: not created: create build", "failed: 0 of 2 jobs ran",
		}},
		{"agents that may not be counted", node{agents: 2, before: func(s *bktest.Server, _ *Options) {
			s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/agents", Status: http.StatusForbidden, Times: -1})
		}}, Options{Parts: []string{Concurrency}}, 0, []string{"failed: cannot count the agents; give the number of jobs with --jobs N"}},
		{"and need not", node{agents: 2, before: func(s *bktest.Server, _ *Options) {
			s.Inject(bktest.Fault{Route: "GET /v2/organizations/{org}/agents", Status: http.StatusForbidden, Times: -1})
		}}, Options{Parts: []string{Concurrency}, Jobs: 2}, 0, []string{"ok: its own", "ok: its own", "ok: 2 of 2 jobs ran"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				if tt.after > 0 {
					time.AfterFunc(tt.after, interrupt)
				}
				r, _ := tt.node.prove(t, ctx, tt.o)
				var got []string
				for i, c := range r.Checks {
					text := string(c.Verdict) + ": " + c.Saw
					if i < len(tt.checks) && strings.HasPrefix(text, tt.checks[i]) {
						text = tt.checks[i]
					}
					got = append(got, text)
				}
				if d := cmp.Diff(tt.checks, got); d != "" || r.OK && tt.name != "and need not" {
					t.Errorf("ok %t: %s", r.OK, d)
				}
			})
		})
	}
}

// TestHold: jobs are held for as many as run at once.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seconds := map[string]int{}
		n := node{agents: 2, do: func(w *bktest.Work, _ int, _ Kind) {
			text, _, _ := submissionOf(w.Env)
			_, s, _ := strings.Cut(text, "SECONDS = ")
			mu.Lock()
			seconds[strings.TrimSpace(s)]++
			mu.Unlock()
		}}
		n.prove(t, t.Context(), Options{Parts: []string{Concurrency}, Jobs: 6})
		if want := fmt.Sprintf("%g", holdFor(2).Seconds()); seconds[want] != 6 {
			t.Errorf("%v; want %s", seconds, want)
		}
	})
	for n := 1; n <= MaxJobs; n++ { // Buildkite accepts 50 requests a minute
		if created := time.Duration(n) * time.Minute / 50; holdFor(n) < created {
			t.Fatalf("%d jobs are held for %s and created in %s", n, holdFor(n), created)
		}
	}
}

// TestLoad checks that problems that cannot tell right from wrong are refused.
func TestLoad(t *testing.T) {
	t.Parallel()
	for _, name := range task.Examples() {
		if _, err := Load(name); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	must.Write(t, dir, "task.yml", `{files: [{name: s.py, source: "@SUBMISSION@"}, {name: e.py, source: e.py}], lang: py, config: {main: e.py}}`)
	must.Write(t, dir, "e.py", "")
	must.Write(t, dir, "wrong.py", "w")
	for _, tt := range []struct{ add, err string }{
		{"", "has no right submission; write one to submission.py"},
		{"submission2.py", "has no right submission"},
		{"submission.py", ""},
		{"-wrong.py", "has no submission that should fail; write one to wrong.py or cheat.py"},
		{"cheater.py", ""},
	} {
		if file, removed := strings.CutPrefix(tt.add, "-"); removed {
			_ = os.Remove(filepath.Join(dir, file))
		} else if tt.add != "" {
			must.Write(t, dir, tt.add, "x")
		}
		_, err := Load(dir)
		must.Err(t, err, tt.err)
	}

	// Links are submissions too. What is there and cannot be read is not left out.
	must.Write(t, dir, "shared/kernel.py", "linked")
	must.Do(t, os.Remove(filepath.Join(dir, "submission.py")))
	for _, name := range []string{"submission.py", "wrong_2.py"} {
		must.Do(t, os.Symlink("shared/kernel.py", filepath.Join(dir, name)))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "wrongs.py"), 0o755))
	p, err := Load(dir)
	must.Do(t, err)
	must.Equal(t, []Submission{{"submission.py", Right, "linked"}, {"wrong_2.py", Wrong, "linked"}, {"cheater.py", Cheat, "x"}}, p.Submissions)
	for _, to := range []string{"none.py", os.DevNull, "shared"} {
		link := filepath.Join(dir, "wrong_3.py")
		must.Do(t, os.Symlink(to, link))
		_, err := Load(dir)
		must.Err(t, err, "read submission: "+link)
		must.Do(t, os.Remove(link))
	}
}

// TestPartsSideBySide checks that partitions of a GPU, which share its UUID, count as separate
// GPUs.
func TestPartsSideBySide(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ran := func(slot int, part string) submit.Outcome {
		out := submit.Outcome{Agent: fmt.Sprintf("n-gpu%d", slot), Started: now, Ended: now.Add(time.Second),
			Tags: []string{"gpu-uuid=GPU-3b1f0a0e64b40000", "node=n", fmt.Sprintf("gpu-index=%d", slot)}}
		if part != "" {
			out.Tags = append(out.Tags, "gpu-part="+part)
		}
		return out
	}
	if saw, held := sideBySide([]submit.Outcome{ran(0, "CPX"), ran(1, "CPX")}, 2); !held || !strings.HasSuffix(saw, "on 2 agents and 2 GPUs") {
		t.Error(saw)
	}
	for _, two := range [][]submit.Outcome{{ran(0, ""), ran(1, "")}, {ran(0, "CPX"), ran(0, "CPX")}} {
		if saw, held := sideBySide(two, 2); held {
			t.Errorf("one GPU, twice: %s", saw)
		}
	}
}
