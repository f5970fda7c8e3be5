package arena

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/test/must"
)

// asRunner is the variable that lets the test binary run as kbnode: an evaluation takes over its process.
const asRunner = "KBNODE_TEST_RUNNER"

func TestMain(m *testing.M) {
	if compile.Invoked() {
		os.Exit(compile.Client())
	}
	if os.Getenv(asRunner) != "" {
		os.Exit(runner.Command(context.Background(), os.Args[2:])) // after the word runner
	}
	_ = os.Setenv(asRunner, "1")
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// busy is the limit of an evaluation on a busy machine.
const busy = 5 * time.Minute

func local(t *testing.T, jobs int) Evaluate {
	t.Helper()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	self, err := os.Executable()
	must.Do(t, err)
	return Local(jobs, self)
}

func read(t *testing.T, problem string) (*task.Task, string) {
	t.Helper()
	p, err := task.Find(problem)
	must.Do(t, err)
	honest, err := p.ReadSubmission(p.Submission)
	must.Do(t, err)
	return p, honest
}

func corpus(t *testing.T) *Corpus {
	t.Helper()
	c, err := Embedded()
	must.Do(t, err)
	return c
}

// The attacks that win against a shape of eval.py, whatever the machine and its load. Of those in quick, one of
// each kind, the short tests know.
var wins = map[string]struct{ quick, slow string }{
	"in-process": {
		quick: "builtins_enumerate check_code clock_c_function clock_zero hook_profile modules_judge report_pipes secret_frame serializer_json statistics_function times_object",
		slow: "builtins_sum check_reference clock_bound clock_int clock_slow hook_trace precompute_maker serializer_encoder " +
			"serializer_write statistics_underflow times_thread",
	},
	"pool": {
		quick: "builtins_enumerate check_code clock_c_function clock_zero hook_profile pickle_code pickle_dumps pickle_statistics secret_frame statistics_function times_object",
		slow:  "builtins_sum check_module check_reference clock_bound clock_int clock_slow hook_trace precompute_maker statistics_class statistics_underflow times_thread",
	},
}

// TestShapes tries the corpus against shapes of eval.py that hold the submission together with the clock. The
// short tests try only attacks that win.
func TestShapes(t *testing.T) {
	t.Parallel()
	for shape, want := range wins {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			p, honest := read(t, "testdata/"+shape)
			c, known := corpus(t), strings.Fields(want.quick)
			if testing.Short() {
				c.Attacks = slices.DeleteFunc(c.Attacks, func(a Attack) bool { return !slices.Contains(known, a.Name) })
			} else {
				known = append(known, strings.Fields(want.slow)...)
			}
			r, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: c, Evaluate: local(t, 2), Limit: busy / 5})
			must.Do(t, err)
			must.Equal(t, len(c.Attacks), len(r.Attacks))
			for _, row := range r.Attacks {
				t.Logf("%-8s %-22s %10.1f ns, %.3f: %s", row.Outcome, row.Attack, row.Claimed, row.Ratio, row.Verdict)
				switch {
				case slices.Contains(known, row.Attack):
					known = slices.DeleteFunc(known, func(name string) bool { return name == row.Attack })
					if row.Outcome != Won {
						t.Errorf("%s %s: %s", row.Attack, row.Outcome, row.Verdict)
					}
					if r.Cures[row.Kind] == "" {
						t.Errorf("nothing says what would stop the kind %s", row.Kind)
					}
				case row.Outcome == Broken || row.Outcome == Untried:
					t.Errorf("%s %s: %s", row.Attack, row.Outcome, row.Verdict)
				}
			}
			if len(known) > 0 || r.OK {
				t.Errorf("not tried: %q; OK is %v", known, r.OK)
			}
		})
	}
}

// TestSeparateJudge tries the corpus against the judge of the examples, which shares no process with the
// submission. The short tests try one attack of each kind that wins elsewhere.
func TestSeparateJudge(t *testing.T) {
	t.Parallel()
	p, honest := read(t, "prefix_python")
	c := corpus(t)
	if testing.Short() {
		known := strings.Fields("check_code clock_c_function report_pipes secret_frame shared_after shared_early")
		c.Attacks = slices.DeleteFunc(c.Attacks, func(a Attack) bool { return !slices.Contains(known, a.Name) })
	}
	r, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: c, Evaluate: local(t, 1), Limit: busy})
	must.Do(t, err)
	for _, row := range r.Attacks {
		t.Logf("%-8s %-22s %10.1f ns, %.3f: %s", row.Outcome, row.Attack, row.Claimed, row.Ratio, row.Verdict)
		if row.Outcome != Stopped && row.Outcome != Skipped {
			t.Errorf("%s %s with %.3f of the honest time: %s", row.Attack, row.Outcome, row.Ratio, row.Verdict)
		}
	}
}

// TestBothForms has the judge of the examples call each attack as it calls the honest submission, or with an output if the
// attack takes one.
func TestBothForms(t *testing.T) {
	t.Parallel()
	p, returns := read(t, "prefix_python")
	for form, honest := range map[string]string{
		"returned": returns,
		"in place": "from array import array\nfrom itertools import accumulate\ndef custom_kernel(data, output):\n    output[:] = array('q', accumulate(data))\n",
	} {
		c := corpus(t)
		c.Attacks = slices.DeleteFunc(c.Attacks, func(a Attack) bool {
			return !slices.Contains([]string{"late_fork", "shared_after", "clock_zero"}, a.Name)
		})
		r, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: c, Evaluate: local(t, 1), Limit: busy})
		must.Do(t, err)
		for _, row := range r.Attacks {
			if row.Outcome != Stopped || strings.Contains(row.Verdict, "not shared memory") {
				t.Errorf("%s: %s %s: %s", form, row.Attack, row.Outcome, row.Verdict)
			}
		}
	}
}

// TestBroken tells attacks whose own code fails from those that are stopped.
func TestBroken(t *testing.T) {
	t.Parallel()
	const head = "# kind: mine\n# tries: nothing\n# source: none\n"
	dir := t.TempDir()
	for name, code := range map[string]string{
		"import": "import nothing_of_this_name", "call": "def custom_kernel(*args):\n    return no_name", "syntax": "def",
		"harmless": "note('missed', 'nothing is here')", "wrong": "custom_kernel = lambda *args: wrong(None)",
	} {
		must.Write(t, dir, name+".py", head+code+"\n")
	}
	c := &Corpus{Cures: map[string]string{}}
	must.Do(t, c.Add(dir))
	p, _ := read(t, "testdata/in-process")
	// What a literal of Python could spoil.
	honest := "from itertools import accumulate\nTEXT = '\\'\"\\\\ \\n é 😀 \u2028 @ATTACK@'\nassert len(TEXT) == 20, len(TEXT)\ndef custom_kernel(data):\n    return list(accumulate(data))\n"
	r, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: c, Evaluate: local(t, 2), Limit: busy})
	must.Do(t, err)
	got := map[string]string{}
	for _, row := range r.Attacks {
		got[row.Attack] = string(row.Outcome) + ": " + row.Verdict
	}
	if _, after, ok := strings.Cut(got["syntax"], "broken: SyntaxError"); ok && after != "" {
		got["syntax"] = "broken: SyntaxError"
	}
	must.Equal(t, map[string]string{
		"import": "broken: ModuleNotFoundError: No module named 'nothing_of_this_name'", "call": "broken: NameError: name 'no_name' is not defined",
		"syntax": "broken: SyntaxError", "harmless": "stopped: passed; nothing is here", "wrong": "stopped: test: the output is a NoneType, not a list",
	}, got)
	if !r.OK {
		t.Error("none won, and the report is not OK")
	}
}

// TestLimit ends evaluations that take too long, and all that is left when ctx ends.
func TestLimit(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	p, _ := read(t, "testdata/in-process")
	const endless = "import time\ntime.sleep(1000)\n"
	_, err := Run(t.Context(), Options{Task: p, Honest: endless, Corpus: corpus(t), Evaluate: local(t, 1), Limit: time.Second})
	must.Err(t, err, "the honest submission gives nothing to compare with: it was ended after 1s; allow more with --timeout")
	ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, errors.New("Ctrl-C"))
	defer stop()
	_, err = Run(ctx, Options{Task: p, Honest: endless, Corpus: corpus(t), Evaluate: local(t, 1)})
	must.Err(t, err, "evaluate the honest submission: Ctrl-C")
	left, err := os.ReadDir(os.TempDir())
	must.Do(t, err)
	if len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// report returns a result of all runs, with times of benchmarks: mean, best, mean, best.
func report(times ...string) *result.Result {
	r := &result.Result{Success: true}
	for _, name := range task.Runs(Mode) {
		run := &result.Run{Success: true, Passed: true}
		run.Result.Set("check", "pass")
		for i := 0; i < len(times); i += 2 {
			run.Result.Set(fmt.Sprintf("benchmark.%d.mean", i/2), times[i])
			run.Result.Set(fmt.Sprintf("benchmark.%d.best", i/2), times[i+1])
		}
		r.Runs.Set(name, &result.Evaluation{Run: run})
	}
	return r
}

func failing(stderr string, exit int, said ...string) *result.Result {
	r := report("1", "1")
	run := r.Runs.Get("benchmark").Run
	run.Passed, run.ExitCode, run.Stderr, run.Result = false, exit, stderr, nil
	for i := 0; i < len(said); i += 2 {
		run.Result.Set(said[i], said[i+1])
	}
	return r
}

func noting(r *result.Result, text string) *result.Result {
	r.Runs.Get("leaderboard").Run.Stderr = text
	return r
}

func TestJudge(t *testing.T) {
	t.Parallel()
	honest, wrong := []float64{1000, 100}, Attack{Wrong: true}
	said := func(word string) string { return "text\nkbnode cheats: " + word + ": why\n" }
	for name, c := range map[string]struct {
		a    Attack
		e    Evaluation
		want string
	}{
		"as fast":                       {e: Evaluation{Result: report("1100", "950", "110", "95")}, want: "stopped 1.10: passed"},
		"a little faster":               {e: Evaluation{Result: report("910", "860", "110", "95")}, want: "stopped 0.91: passed"},
		"faster":                        {e: Evaluation{Result: report("890", "860", "110", "95")}, want: "won 0.89: passed"},
		"faster in another benchmark":   {e: Evaluation{Result: report("1100", "950", "1", "1")}, want: "won 0.01: passed"},
		"one call is much faster":       {e: Evaluation{Result: report("5000", "400", "500", "95")}, want: "won 0.40: passed; its best call is below what is possible"},
		"one call is faster":            {e: Evaluation{Result: report("5000", "600", "500", "60")}, want: "stopped 5.00: passed"},
		"zero":                          {e: Evaluation{Result: report("0.0", "0", "110", "95")}, want: "won 0.00: passed"},
		"negative":                      {e: Evaluation{Result: report("-5", "0", "110", "95")}, want: "won -0.01: passed"},
		"not a number":                  {e: Evaluation{Result: report("nan", "0", "110", "95")}, want: "won 0.00: passed with a time of NaN"},
		"no number":                     {e: Evaluation{Result: report("fast", "0", "110", "95")}, want: "won 0.00: passed with a time of NaN"},
		"endless":                       {e: Evaluation{Result: report("inf", "inf", "inf", "inf")}, want: "stopped 0.00: passed without a time"},
		"minus infinity":                {e: Evaluation{Result: report("-inf", "0")}, want: "won 0.00: passed with a time of -Inf"},
		"out of range":                  {e: Evaluation{Result: report("1e999", "1e999")}, want: "stopped 0.00: passed without a time"},
		"fewer benchmarks":              {e: Evaluation{Result: report("1100", "1000")}, want: "stopped 1.10: passed"},
		"more benchmarks":               {e: Evaluation{Result: report("1100", "1000", "110", "95", "1", "1")}, want: "stopped 1.10: passed"},
		"no time":                       {e: Evaluation{Result: report()}, want: "stopped 0.00: passed without a time"},
		"a wrong output":                {a: wrong, e: Evaluation{Result: report("1100", "950", "110", "95")}, want: "won 1.10: passed with a wrong output"},
		"says that it is wrong":         {a: wrong, e: Evaluation{Result: noting(report("1100", "950"), said("armed")+said("wrong"))}, want: "won 1.10: passed with a wrong output"},
		"says nothing of it":            {a: wrong, e: Evaluation{Result: noting(report("1100", "950"), said("missed"))}, want: "stopped 1.10: passed; why"},
		"its code failed":               {a: wrong, e: Evaluation{Result: noting(report("1100", "950"), said("broken"))}, want: "broken 1.10: why"},
		"it won though its code failed": {e: Evaluation{Result: noting(report("1", "1"), said("broken"))}, want: "won 0.00: passed"},
		"armed and missed":              {e: Evaluation{Result: noting(report("1100", "950"), said("armed")+said("missed"))}, want: "stopped 1.10: passed"},
		"fails":                         {e: Evaluation{Result: failing("noise", 112, "benchmark.0.status", "fail", "benchmark.0.error", "it is wrong")}, want: "stopped 0.00: benchmark: it is wrong"},
		"ends":                          {e: Evaluation{Result: failing("a\nlast words\n", 7)}, want: "stopped 0.00: benchmark: exit code 7: last words"},
		"ends with a note":              {e: Evaluation{Result: failing(said("armed"), -9)}, want: "stopped 0.00: benchmark: exit code -9"},
		"out of time":                   {e: Evaluation{Result: failing("", result.ExitTimeout)}, want: "stopped 0.00: benchmark: exceeded its time limit"},
		"no run":                        {e: Evaluation{Result: &result.Result{Success: true}}, want: "stopped 0.00: test: did not run"},
		"no success":                    {e: Evaluation{Result: &result.Result{Error: "files were changed"}}, want: "stopped 0.00: files were changed"},
		"no result":                     {e: Evaluation{Err: errors.New("no result")}, want: "not tried 0.00: no result"},
		"the limit":                     {e: Evaluation{TimedOut: true}, want: "stopped 0.00: ended by the time limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := judge(c.a, honest, c.e)
			must.Equal(t, c.want, fmt.Sprintf("%s %.2f: %s", row.Outcome, row.Ratio, row.Verdict))
		})
	}
}

// answers is an Evaluate that gives each attack's results in turn.
type answers map[string][]*result.Result

func (a answers) evaluate(_ context.Context, trials []Trial, done func(int, Evaluation)) {
	for i, trial := range trials {
		list := a[trial.Name]
		if len(list) > 1 {
			a[trial.Name] = list[1:]
		}
		done(i, Evaluation{Result: list[0]})
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	p, honest := read(t, "testdata/in-process")
	c := &Corpus{
		Attacks: []Attack{{Name: "close", Kind: "k"}, {Name: "twice", Kind: "k"}, {Name: "fast", Kind: "f"}, {Name: "card", Kind: "g", Needs: GPU}, {Name: "array", Kind: "g", Needs: Torch}},
		Cures:   map[string]string{"k": "do this", "f": "do that", "g": "nothing"},
	}
	slow, fast := report("1000", "1000"), report("1", "1")
	with := func(torch string) *result.Result {
		r := report("1000", "1000")
		r.System = &result.System{Torch: torch}
		return r
	}
	a := answers{"honest": {with("2.0")}, "close": {report("800", "800"), slow}, "twice": {report("800", "800"), report("850", "850")}, "fast": {fast}, "array": {slow}}
	var shown []string
	r, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: c, Evaluate: a.evaluate, On: func(r Row, n, all int) {
		shown = append(shown, fmt.Sprintf("%s %d/%d", r.Attack, min(n, all), all))
	}})
	must.Do(t, err)
	var rows []string
	for _, row := range r.Attacks {
		rows = append(rows, row.Attack+" "+string(row.Outcome))
	}
	must.Equal(t, []string{"close stopped", "twice won", "fast won", "card skipped", "array stopped"}, rows)
	must.Equal(t, map[Outcome]int{Won: 2, Stopped: 2, Skipped: 1}, r.Counts)
	must.Equal(t, map[string]string{"k": "do this", "f": "do that"}, r.Cures)
	must.Equal(t, 7, len(shown))
	if r.OK {
		t.Error("attacks won, and the report is OK")
	}

	// No two evaluations have the same secret, and the honest submission is in each.
	seeds := map[payload.Value]bool{}
	o := Options{Task: p, Honest: honest}
	for range 3 {
		trial, err := o.trial("x", Attack{Code: "pass"}.Wrap("honest text"))
		must.Do(t, err)
		doc, err := payload.ParseObject(trial.Payload)
		must.Do(t, err)
		seed, _ := doc.Get("seed")
		seeds[seed] = true
		must.Contain(t, trial.Payload, "honest text")
	}
	must.Equal(t, 3, len(seeds))
}

// TestHandover says what share of a call the hand-over takes, if the judge reports numbers.
func TestHandover(t *testing.T) {
	t.Parallel()
	for want, said := range map[string][]string{
		"[0.65 0.01]": {"benchmark.0.handover", "13", "benchmark.0.raw.mean", "20", "benchmark.1.handover", "1", "benchmark.1.raw.mean", "100"},
		"[1]":         {"benchmark.0.handover", "30", "benchmark.0.raw.mean", "20"},
		"[]":          {"benchmark.0.handover", "13"},
		"[] ":         {"benchmark.0.handover", "13", "benchmark.0.raw.mean", "0"},
		"[]  ":        {"benchmark.0.handover", "inf", "benchmark.0.raw.mean", "20"},
		"[]   ":       {"benchmark.0.handover", "nan", "benchmark.0.raw.mean", "nan"},
	} {
		r := report("1000", "1000", "1000", "1000")
		for i := 0; i < len(said); i += 2 {
			r.Runs.Get(Mode).Run.Result.Set(said[i], said[i+1])
		}
		must.Equal(t, strings.TrimSpace(want), fmt.Sprint(handover(r)))
	}
}

func TestHonestRefused(t *testing.T) {
	t.Parallel()
	p, honest := read(t, "testdata/in-process")
	const says = "the honest submission gives nothing to compare with: "
	for want, r := range map[string]*result.Result{
		says + "benchmark: it is wrong; fix it, or name another one":                                       failing("", 112, "benchmark.0.error", "it is wrong"),
		says + "the problem reports no benchmark.0.best above 0; report it, as kernelbot's eval.py does":   report(),
		says + "the problem reports no benchmark.0.best above 0; report it, as kernelbot's eval.py does ":  report("1", "0"),
		says + "the problem reports no benchmark.0.best above 0; report it, as kernelbot's eval.py does  ": report("1", "nan"),
	} {
		_, err := Run(t.Context(), Options{Task: p, Honest: honest, Corpus: corpus(t), Evaluate: answers{"honest": {r}}.evaluate})
		must.Err(t, err, strings.TrimSpace(want))
		if !errors.Is(err, ErrHonest) {
			t.Errorf("%v is not ErrHonest", err)
		}
	}
	for _, name := range []string{"identity_cuda", "../task/testdata/copy_cuda"} {
		cuda, err := task.Find(name)
		must.Do(t, err)
		_, err = Run(t.Context(), Options{Task: cuda, Corpus: corpus(t)})
		must.Err(t, err, says+"it is not in Python, and the attacks are; choose a problem whose submissions are")
	}
}
