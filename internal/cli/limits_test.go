package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// publicProblem returns a payload with the time limits of a line of testdata/problems.txt.
func publicProblem(t *testing.T, line, mode string) *payload.Object {
	t.Helper()
	var name string
	var test, benchmark, ranked, benchmarks int
	_, err := fmt.Sscan(line, &name, &test, &benchmark, &ranked, &benchmarks)
	must.Do(t, err)
	cases := strings.Repeat(",{}", benchmarks)[1:]
	o, err := payload.ParseObject(fmt.Sprintf(`{"main":"eval.py","sources":{"eval.py":""},"lang":"py","mode":%q,"benchmarks":[%s],
		"test_timeout":%d,"benchmark_timeout":%d,"ranked_timeout":%d}`, mode, cases, test, benchmark, ranked))
	must.Do(t, err)
	return o
}

// TestPublicProblems checks that each public problem can take all its time in the steps that kbnode pipeline
// prints, and on a node with the default limit. In mode profile, where each benchmark has its limit, kbnode
// submit says which cannot.
func TestPublicProblems(t *testing.T) {
	t.Parallel()
	var step struct {
		Steps []struct {
			Minutes int `json:"timeout_in_minutes"`
		}
	}
	must.Do(t, json.Unmarshal([]byte(kbnode(t, "pipeline", "--queue", "q", "--json", "--root", t.TempDir()).out), &step))
	node, err := (config.Job{TimeLimit: config.DefaultTimeLimit}).Limit()
	must.Do(t, err)
	l := submit.Limits{Step: time.Duration(step.Steps[0].Minutes) * time.Minute, Node: time.Duration(node) * time.Second}
	problems := 0
	var longer []string
	for line := range strings.Lines(must.Read(t, "testdata/problems.txt")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		problems++
		for _, mode := range task.Modes {
			programs, err := runner.MaxTime(publicProblem(t, line, mode))
			must.Do(t, err)
			if short := (submit.Target{}).Short(submit.JobTime(programs), l); mode == "profile" && len(short) > 0 {
				longer = append(longer, strings.Fields(line)[0])
			} else if len(short) > 0 {
				t.Errorf("%s, mode %s: %q", strings.TrimSpace(line), mode, short)
			}
		}
	}
	must.Equal(t, 42, problems)
	must.Equal(t, "amd_202602/mixed-mla bioml/trimul linalg/cholesky_py linalg/eigh_py linalg/qr_v2", strings.Join(longer, " "))
}

// TestShortLimits submits an evaluation that may take longer than what is around it allows.
func TestShortLimits(t *testing.T) {
	var eigh string
	for line := range strings.Lines(must.Read(t, "testdata/problems.txt")) {
		if strings.HasPrefix(line, "linalg/eigh_py ") { // 480 + 900 + 900 s
			eigh = payload.JSON(publicProblem(t, line, "leaderboard"))
		}
	}
	doc := must.Write(t, t.TempDir(), "eigh.json", eigh)
	const need = "the evaluation may take 50 minutes, and "
	at := func(minutes int) string {
		p, err := pipeline.Build(pipeline.Eval, pipeline.Options{Queue: "b200", Timeout: minutes})
		must.Do(t, err)
		return string(p.YAML())
	}
	for _, tt := range []struct {
		name, steps, limit, args string
		want                     []string
	}{
		{"all have time", at(50), "50m", "--timeout 50m", nil},
		{"no limits are known", "steps: [{command: exec kbnode runner, agents: {queue: b200}}]", "x", "", nil},
		{"the step", at(49), "120m", "", []string{"the step of pipeline kernelbot ends it after 49; set timeout_in_minutes to 50 there, or add --inline-steps"}},
		{"its own steps", at(15), "120m", "--inline-steps", nil},
		{"the node", at(90), "45m", "", []string{"job.time_limit of the node ends it after 45; write 50m there"}},
		{"the command", at(90), "2h", "--timeout 20m", []string{"--timeout cancels it after 20; write --timeout 50m, or leave it out"}},
		{"all", at(1), "2m", "--timeout 3m", []string{"--timeout", "the step", "job.time_limit"}},
		{"before it is sent", "", "", "--timeout 3m --dry-run", []string{"--timeout"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := office(t, bktest.Options{Steps: tt.steps}, map[string][]string{"other": {"queue=a", "time-limit=1m"}, "n-gpu0": {"queue=b200", "time-limit=" + tt.limit}})
			useBuildkite(t, s)
			// Nothing takes the build, which shows that the warning comes before one.
			s.Inject(bktest.Fault{Route: "POST /v2/organizations/{org}/pipelines/{pipeline}/builds", Status: 403, Times: -1})
			got := kbnode(t, slices.Concat([]string{"submit", "--queue", "b200", "--payload", doc}, strings.Fields(tt.args))...)
			said := slices.DeleteFunc(strings.Split(got.err, "\n"), func(line string) bool { return !strings.Contains(line, "warning") })
			if len(said) != len(tt.want) {
				t.Fatalf("%+v", got)
			}
			for i, want := range tt.want {
				must.Contain(t, said[i], need+want)
			}
		})
	}

	// e2e asks for its own mode.
	problem := filepath.Join(t.TempDir(), "slow")
	for name, text := range map[string]string{
		"task.yml":      "lang: py\nfiles: [{name: submission.py, source: '@SUBMISSION@'}]\nconfig: {main: submission.py}\ntests: [{a: 1}]\nbenchmarks: [{a: 1}]\nranked_timeout: 1200\n",
		"submission.py": "", "wrong.py": "",
	} {
		must.Write(t, problem, name, text)
	}
	s := office(t, bktest.Options{Steps: at(37)}, map[string][]string{"n-gpu0": {"queue=b200", "time-limit=37m"}})
	useBuildkite(t, s)
	s.Inject(bktest.Fault{Route: "POST /v2/organizations/{org}/pipelines/{pipeline}/builds", Status: 403, Times: -1})
	got := kbnode(t, "e2e", "evaluation", "--queue", "b200", "--problem", problem)
	must.Contain(t, got.err, "may take 38 minutes, and the step of pipeline kernelbot", "may take 38 minutes, and job.time_limit")
	for mode, want := range map[string]int{"test": 15, "benchmark": 15, "leaderboard": 38} {
		got := kbnode(t, "e2e", "evaluation", "--queue", "b200", "--problem", problem, "--mode", mode, "--timeout", "1m", "--dry-run")
		must.Contain(t, got.err, fmt.Sprintf("the evaluation may take %d minutes, and --timeout", want))
		got = kbnode(t, "e2e", "evaluation", "--queue", "b200", "--problem", problem, "--mode", mode, "--inline-steps", "--dry-run", "--json")
		must.Contain(t, got.out, fmt.Sprintf(`"timeout_in_minutes": %d`, want))
	}
}

// TestLongLine leaves a line of more words than people type as it is: xargs writes thousands.
func TestLongLine(t *testing.T) {
	t.Parallel()
	for count, repaired := range map[int]bool{maxRetyped: true, maxRetyped + 1: false} {
		typed := append([]string{"queue"}, slices.Repeat([]string{"“1”"}, count-1)...)
		err := term.Usagef("no run")
		if got := (hints{term.Streams{Typed: typed, Commands: Commands()}}).retyped(err); (got.Error() != err.Error()) != repaired {
			t.Errorf("%d words: %v", count, got)
		}
	}
}
