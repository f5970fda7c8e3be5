package compare

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxBenchmarks bounds the benchmarks of a report, which may state any number.
const maxBenchmarks = 256

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

// Run tests both submissions and evaluates them in rounds, fills in the report, and judges it. A wrong
// submission is a *Failure. Any other error leaves a report of the rounds until then without a verdict: a submission must
// not choose when to stop. The end of ctx leaves one with a verdict, and is no error after the tests.
func Run(ctx context.Context, o Options, r *Report) error {
	r.Schema, r.Level, r.Same = Schema, Level, Same
	r.Mode, r.Wanted, r.Rounds = o.Mode, o.Rounds, []Round{}
	r.Overall.Verdict = Unknown
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
	var specs []string
	for n := range o.Rounds {
		round, names, err := o.round(ctx, r, n+1)
		switch {
		case ctx.Err() != nil:
			r.Stopped = "interrupted"
			r.Judge(specs) // the round that did not end may have had a time that cannot be
			return nil
		case err == nil && n > 0 && !slices.Equal(specs, names):
			err = fmt.Errorf("round %d: the benchmarks are not those of round 1; use a judge that reports the same in each run", n+1)
		}
		if err != nil {
			r.Stopped = text.Line(err.Error(), 300)
			r.Judge(specs)
			if len(r.Odd) == 0 {
				r.overrule(Unknown)
			}
			return err
		}
		specs = names
		r.Rounds = append(r.Rounds, round)
		r.Judge(specs)
	}
	return nil
}

// First returns which submission a round begins with. It alternates, so that neither gains from its place.
func First(round int) int { return (round + 1) % 2 }

// round evaluates both submissions once.
func (o Options) round(ctx context.Context, r *Report, n int) (round Round, specs []string, err error) {
	round.First = First(n)
	var all [2][]float64
	var names [2][]string
	for _, side := range []int{round.First, 1 - round.First} {
		e, err := o.evaluate(ctx, r, side, n, o.Mode)
		if err != nil || ctx.Err() != nil {
			return round, nil, err
		}
		if names[side], all[side], err = times(e.Result, o.Mode); err != nil {
			return round, nil, fmt.Errorf("round %d: %s: %w", n, text.Line(r.Files[side], maxName), err)
		}
	}
	if !slices.Equal(names[0], names[1]) {
		return round, nil, fmt.Errorf("round %d: the benchmarks of both submissions differ; use a judge that reports the same for each", n)
	}
	for i := range names[0] {
		round.Means = append(round.Means, [2]float64{all[0][i], all[1][i]})
	}
	return round, names[0], nil
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

// times returns the specs and the means of a run's benchmarks.
func times(r *result.Result, mode string) (specs []string, means []float64, err error) {
	ev := r.Runs.Get(mode)
	if ev == nil || ev.Run == nil {
		return nil, nil, fmt.Errorf("there is no run of mode %s", mode)
	}
	said := make(map[string]string, len(ev.Run.Result))
	for _, m := range ev.Run.Result {
		said[m.Key] = m.Value
	}
	for i := range maxBenchmarks + 1 {
		key := fmt.Sprintf("benchmark.%d.", i)
		value, is := said[key+"mean"]
		if !is {
			break
		}
		ns, err := strconv.ParseFloat(value, 64)
		if err != nil || !(ns >= minTime && ns <= maxTime) {
			return nil, nil, fmt.Errorf("the mean %q of benchmark %d is no time", text.Line(value, 40), i)
		}
		spec := said[key+"spec"]
		if spec == "" {
			spec = fmt.Sprintf("benchmark %d", i)
		}
		specs, means = append(specs, text.Line(spec, 200)), append(means, ns)
	}
	switch {
	case len(specs) == 0:
		return nil, nil, fmt.Errorf("it reports no benchmark.0.mean; use a problem whose judge reports one, as kernelbot's eval.py does")
	case len(specs) > maxBenchmarks:
		return nil, nil, fmt.Errorf("it reports more than %d benchmarks", maxBenchmarks)
	}
	return specs, means, nil
}
