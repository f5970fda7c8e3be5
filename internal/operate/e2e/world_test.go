package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// Kinds of jobs that are not submissions of the problem.
const isArtifact, isWait Kind = "artifact", "wait"

// node is what agents do with jobs in a test.
type node struct {
	agents int
	tags   func(i int) []string                   // nil means those of kbnode's agents
	do     func(w *bktest.Work, i int, kind Kind) // called after a good job, to spoil it; may be nil
	takes  func(i int, kind Kind) time.Duration   // nil means 30 seconds
	before func(s *bktest.Server, o *Options)
}

// evaluates returns a result.json with these runs. All passed, except the last if passed is
// false.
func evaluates(passed bool, reported string, names ...string) string {
	var runs []string
	for i, name := range names {
		ok, exit := true, 0
		if i == len(names)-1 && !passed {
			ok, exit = false, 112
		}
		report := reported
		if name == "leaderboard" {
			report = `"benchmark-count":"1","benchmark.0.mean":"4096","check":"pass"`
		}
		runs = append(runs, fmt.Sprintf(`%q:{"start":"2026-01-01T00:00:00","end":"2026-01-01T00:00:01","compilation":null,"run":{"success":true,"passed":%t,"command":"x","stdout":"","stderr":"","exit_code":%d,"duration":1.5,"result":{%s}},"profile":null}`, name, ok, exit, report))
	}
	return `{"success":true,"error":"","system":{"gpu":"","device_count":0,"cpu":"","runtime":"","platform":"Linux","torch":"","hostname":"h"},"runs":{` + strings.Join(runs, ",") + "}}"
}

// submissionOf returns the submission and the mode of a job.
func submissionOf(env map[string]string) (text, mode string, err error) {
	encoded := env[payload.Var]
	for i := 0; env[fmt.Sprintf("%s_%d", payload.Var, i)] != ""; i++ {
		encoded += env[fmt.Sprintf("%s_%d", payload.Var, i)]
	}
	doc, err := payload.Inflate(encoded)
	if err != nil {
		return "", "", err
	}
	o, err := payload.ParseObject(doc)
	if err != nil {
		return "", "", err
	}
	sources, _ := o.Get("sources")
	code, _ := sources.(*payload.Object).Get("submission.py")
	m, _ := o.Get("mode")
	return code.(string), m.(string), nil
}

// pretend leaves the files that a good node would, without running the job.
func pretend(w *bktest.Work, p *Problem) (kind Kind) {
	text, mode, err := submissionOf(w.Env)
	if err != nil {
		w.Files["result.json"] = evaluates(true, "")
		return isArtifact
	}
	if id, is := strings.CutPrefix(text, "RUN = "); is {
		id, _, _ = strings.Cut(id, "\n")
		w.Files["result.json"] = evaluates(true, `"test-count":"1","run-id":`+id+`,"gpu":"","check":"pass"`, "test")
		return isWait
	}
	names := task.Runs(mode)
	for _, s := range p.Submissions {
		if s.Text != text {
			continue
		}
		kind = s.Kind
		passes := kind == Right || kind == Cheat && mode == "test"
		if !passes && len(names) > 1 {
			names = names[:2]
		}
		w.Files["result.json"] = evaluates(passes, `"check":"x"`, names...)
		w.Files["node.json"] = `{"schema":1,"profile":"strict"}`
	}
	return kind
}

// prove runs o on the node's agents. Call it in a synctest bubble.
func (n node) prove(t *testing.T, ctx context.Context, o Options) (*Report, *bktest.Server) { //nolint:revive // the test comes first here
	t.Helper()
	p, err := Load("prefix_python")
	must.Do(t, err)
	s := bktest.New(bktest.Options{RateLimit: 50, Steps: `steps: [{command: exec kbnode runner, agents: {queue: $KERNELBOT_QUEUE}, artifact_paths: "*.json"}]`})
	working, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { time.Sleep(2 * time.Minute); stop(); synctest.Wait() })
	for i := range n.agents {
		tags := []string{"queue=b200", fmt.Sprintf("gpu-index=%d", i), "node=n", fmt.Sprintf("gpu-uuid=GPU-%d", i)}
		if n.tags != nil {
			tags = n.tags(i)
		}
		err := s.Employ(working, bktest.Worker{Name: fmt.Sprintf("n-gpu%d", i), Tags: tags, Do: func(ctx context.Context, w *bktest.Work) {
			kind := pretend(w, p)
			takes := 30 * time.Second
			if n.takes != nil {
				takes = n.takes(i, kind)
			}
			select {
			case <-ctx.Done():
				w.Exit, w.Files = 143, nil
				return
			case <-time.After(takes):
			}
			if n.do != nil {
				n.do(w, i, kind)
			}
		}})
		must.Do(t, err)
	}
	client, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true})
	must.Do(t, err)
	o.RunID, o.Org, o.Pipeline, o.Queue, o.GPU, o.Problem = NewRunID(), "kbnode", "kernelbot", "b200", "B200_BK", p
	if o.Mode == "" {
		o.Mode = "leaderboard"
	}
	if o.Parts == nil {
		o.Parts = Parts
	}
	if o.QueueTime == 0 {
		o.QueueTime = time.Hour
	}
	if n.before != nil {
		n.before(s, &o)
	}
	r := Run(ctx, client, o)
	for _, b := range s.Builds() {
		if !b.Finished() {
			t.Errorf("build %d is %s", b.Number, b.State)
		}
	}
	if over := s.Over(); over > 0 {
		t.Errorf("%d requests over the limit", over)
	}
	return r, s
}

// compare compares what went wrong with the beginnings of what should.
func compare(t *testing.T, r *Report, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, c := range r.Checks {
		name := c.Part + ", " + c.Name
		switch text := string(c.Verdict) + ": " + c.Saw; {
		case c.Verdict == OK:
		case want[name] != "" && strings.HasPrefix(text, want[name]):
			got[name] = want[name]
		default:
			got[name] = text
		}
	}
	must.Equal(t, want, got, cmpopts.EquateEmpty())
	must.Equal(t, len(want) == 0, r.OK)
}
