package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bounds on what a judge may report, of which the author can be anyone.
const (
	maxBenchmarks = 256
	maxCalls      = 1000    // of a benchmark in one evaluation
	maxKept       = 1 << 18 // of all benchmarks in all rounds; those of later rounds are not kept
)

// Bounds on a time in nanoseconds: beyond them, a submission that chooses its times could make sums and ratios infinite.
const (
	minTime = 1e-3
	maxTime = 1e18
)

// maxName bounds a file's name in an error, in characters.
const maxName = 100

// Modes are those whose times can be compared.
var Modes = []string{"benchmark", "leaderboard"}

// Options say what to compare.
type Options struct {
	Mode     string
	Rounds   int
	Untested bool // the problem has no tests
	// Evaluate evaluates submission 0 or 1 in a mode.
	Evaluate func(ctx context.Context, side int, mode string) arena.Evaluation
	// On, if not nil, is called before each evaluation; round is 0 for the tests.
	On func(side, round int)
}

// Failure is an evaluation after which there is nothing to compare.
type Failure struct {
	Side   int
	Round  int            // 0 for the tests
	Result *result.Result // did not pass
}

func (f *Failure) Error() string {
	says, _ := f.Result.Verdict()
	return says
}

// Where says what did not pass: "its tests", "round 3".
func (f *Failure) Where() string {
	if f.Round == 0 {
		return "its tests"
	}
	return fmt.Sprintf("round %d", f.Round)
}

// Run tests both submissions and evaluates them in rounds, fills in the report, and judges it. A wrong
// submission is a *Failure. Any other error leaves a report of the rounds until then without a verdict: a submission must
// not choose when to stop. The end of ctx leaves one with a verdict, and is no error after the tests.
func Run(ctx context.Context, o Options, r *Report) error {
	r.begin(o.Mode, o.Rounds)
	for side := range 2 {
		if o.Untested {
			break
		}
		if _, err := o.evaluate(ctx, r, side, 0, "test"); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("test both submissions: %w", context.Cause(ctx))
		}
	}
	r.Time = time.Now().UTC().Truncate(time.Second)
	for n := range o.Rounds {
		both, err := o.round(ctx, r, n+1)
		if ctx.Err() != nil {
			r.Stopped = "interrupted"
			r.Judge(r.specs) // the round that did not end may have had a time that cannot be
			return nil
		}
		if err == nil {
			err = r.add(n+1, both)
		}
		if err != nil {
			return r.stop(err)
		}
		r.Judge(r.specs)
	}
	return nil
}

// begin fills in what is known before the first round.
func (r *Report) begin(mode string, rounds int) {
	r.Schema, r.Level, r.Same = Schema, Level, Same
	r.Mode, r.Wanted, r.Rounds = mode, rounds, []Round{}
	r.Overall.Verdict = Unknown
}

// stop ends the comparison without a verdict, unless it is that times cannot be. It returns the error.
func (r *Report) stop(err error) error {
	r.Stopped = text.Line(err.Error(), 300)
	r.Judge(r.specs)
	if len(r.Odd) == 0 {
		r.overrule(Unknown)
	}
	return err
}

// round evaluates both submissions once.
func (o Options) round(ctx context.Context, r *Report, n int) (both [2]timings, err error) {
	first := result.First(n)
	for _, side := range []int{first, 1 - first} {
		e, err := o.evaluate(ctx, r, side, n, o.Mode)
		if err != nil || ctx.Err() != nil {
			return both, err
		}
		if both[side], err = r.times(n, side, e.Result.Runs.Get(o.Mode), o.Mode); err != nil {
			return both, err
		}
	}
	return both, nil
}

// add adds a round.
func (r *Report) add(n int, both [2]timings) error {
	switch specs := both[0].specs; {
	case !slices.Equal(specs, both[1].specs):
		return fmt.Errorf("round %d: the benchmarks of both submissions differ; use a judge that reports the same for each", n)
	case n > 1 && !slices.Equal(specs, r.specs):
		return fmt.Errorf("round %d: the benchmarks are not those of round 1; use a judge that reports the same in each run", n)
	default:
		r.specs = specs
	}
	round, calls := Round{First: result.First(n)}, [][2][]float64{}
	for i := range r.specs {
		a, b := both[0], both[1]
		round.Means = append(round.Means, [2]float64{a.means[i], b.means[i]})
		if n := len(a.calls[i]) + len(b.calls[i]); len(a.calls[i]) > 0 && len(b.calls[i]) > 0 && r.calls+n <= maxKept {
			calls = append(calls, [2][]float64{a.calls[i], b.calls[i]})
			r.calls += n
		}
	}
	if len(calls) == len(r.specs) {
		round.Calls = calls
	}
	r.Rounds = append(r.Rounds, round)
	return nil
}

// evaluate evaluates one submission, which must pass.
func (o Options) evaluate(ctx context.Context, r *Report, side, round int, mode string) (arena.Evaluation, error) {
	if ctx.Err() != nil {
		return arena.Evaluation{}, nil
	}
	if o.On != nil {
		o.On(side, round)
	}
	e := o.Evaluate(ctx, side, mode)
	switch {
	case ctx.Err() != nil: // whatever came back
		return e, nil
	case e.Err != nil:
		return e, fmt.Errorf("evaluate %s: %w", text.Line(r.Files[side], maxName), e.Err)
	}
	if e.Result.Error != "" { // of the runner, which a submission that is wrong does not make
		return e, fmt.Errorf("evaluate %s: %s", text.Line(r.Files[side], maxName), text.Line(e.Result.Error, 300))
	}
	if _, passed := e.Result.Verdict(); !passed {
		return e, &Failure{Side: side, Round: round, Result: e.Result}
	}
	if e.Witness != "" {
		r.Odd = append(r.Odd, fmt.Sprintf("%s, round %d: %s", r.Files[side], round, e.Witness))
	}
	if r.On == "" {
		r.On = e.Result.Machine()
	}
	return e, nil
}

// timings are the times that an evaluation reports.
type timings struct {
	specs []string
	means []float64
	calls [][]float64 // empty of a benchmark whose calls are not reported, or not as times
}

// times returns the times of an evaluation, nil if there was none.
func (r *Report) times(round, side int, ev *result.Evaluation, name string) (t timings, err error) {
	if ev == nil || ev.Run == nil {
		err = fmt.Errorf("there is no run of mode %s", name)
	} else {
		t, err = read(ev.Run)
	}
	if err != nil {
		return t, fmt.Errorf("round %d: %s: %w", round, text.Line(r.Files[side], maxName), err)
	}
	return t, nil
}

func read(run *result.Run) (t timings, err error) {
	said := make(map[string]string, len(run.Result))
	for _, m := range run.Result {
		said[m.Key] = m.Value
	}
	for i := range maxBenchmarks + 1 {
		key := fmt.Sprintf("benchmark.%d.", i)
		value, is := said[key+"mean"]
		if !is {
			break
		}
		ns, ok := timeOf(value)
		if !ok {
			return t, fmt.Errorf("the mean %q of benchmark %d is no time", text.Line(value, 40), i)
		}
		spec := said[key+"spec"]
		if spec == "" {
			spec = fmt.Sprintf("benchmark %d", i)
		}
		t.specs, t.means = append(t.specs, text.Line(spec, 200)), append(t.means, ns)
		t.calls = append(t.calls, callsOf(said[key+"calls"]))
	}
	switch {
	case len(t.specs) == 0:
		return t, errors.New("it reports no benchmark.0.mean; use a problem whose judge reports one, as kernelbot's eval.py does")
	case len(t.specs) > maxBenchmarks:
		return t, fmt.Errorf("it reports more than %d benchmarks", maxBenchmarks)
	}
	return t, nil
}

func timeOf(value string) (ns float64, ok bool) {
	ns, err := strconv.ParseFloat(value, 64)
	return ns, err == nil && ns >= minTime && ns <= maxTime
}

// callsOf reads the times of single calls. It returns none if there are too many, or one is no time.
func callsOf(value string) (all []float64) {
	for word := range strings.FieldsSeq(value) {
		ns, ok := timeOf(word)
		if !ok || len(all) == maxCalls {
			return nil
		}
		all = append(all, ns)
	}
	return all
}
