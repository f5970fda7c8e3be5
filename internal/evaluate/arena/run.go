package arena

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Trial is an evaluation to be made.
type Trial struct {
	Name    string
	Payload string        // JSON text
	Limit   time.Duration // 0 means none
}

// Evaluate makes evaluations, and calls done once for each, never twice at the same time.
type Evaluate func(ctx context.Context, trials []Trial, done func(i int, e Evaluation))

// Options say what to try.
type Options struct {
	Task     *task.Task
	Honest   string // the submission's text
	Arch     string // for nvcc
	Corpus   *Corpus
	Evaluate Evaluate
	Limit    time.Duration // of each evaluation; 0 depends on the honest one
	OnQueue  bool          // the limit is the queue's, which also lets evaluations wait
	// On, if not nil, is called with each row as it becomes known, and with how many there are in all.
	On func(r Row, n, all int)
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is the result of all attacks on a problem.
type Report struct {
	Schema  int             `json:"schema"`
	Time    time.Time       `json:"time"` // when the run began
	Problem string          `json:"problem"`
	OK      bool            `json:"ok"` // no attack won, and all were tried
	Counts  map[Outcome]int `json:"counts"`
	Honest  []float64       `json:"honest_ns"` // best time of each benchmark
	// Handover is what share of a call of the honest submission the hand-over of data takes in each benchmark: a faster kernel
	// looks less fast by as much. It is absent if the judge does not report it.
	Handover []float64         `json:"handover_share,omitempty"`
	Attacks  []Row             `json:"attacks"`
	Cures    map[string]string `json:"cures"` // of the kinds of attacks that won: what would stop them
}

// The default limit of an evaluation: so many times the honest one's time, but not less than some time.
const (
	limitFactor = 3
	minLimit    = 20 * time.Second
)

// ErrHonest means that the honest submission gives nothing to compare with.
var ErrHonest = errors.New("the honest submission gives nothing to compare with")

// Run evaluates the honest submission, and then each attack. When ctx ends, the rest is not tried.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Schema: Schema, Time: time.Now().UTC().Truncate(time.Second), Problem: o.Task.Name(), Counts: map[Outcome]int{}, Cures: map[string]string{}}
	if o.Task.Lang != task.Python || !strings.HasSuffix(o.Task.Submission, ".py") {
		return nil, fmt.Errorf("%w: it is not in Python, and the attacks are; choose a problem whose submissions are", ErrHonest)
	}
	begin := time.Now()
	first, err := o.honest(ctx)
	if err != nil {
		return nil, err
	}
	r.Honest, r.Handover = times(first, "best"), handover(first)
	if o.Limit == 0 && !o.OnQueue {
		o.Limit = max(minLimit, limitFactor*time.Since(begin))
	}
	var tried []Attack
	for _, a := range o.Corpus.Attacks {
		if why := lacks(a.Needs, first.System); why != "" {
			r.add(o, Row{Attack: a.Name, Kind: a.Kind, Tries: a.Tries, Source: a.Source, Outcome: Skipped, Verdict: why})
		} else {
			tried = append(tried, a)
		}
	}
	if err := r.try(ctx, o, tried); err != nil {
		return nil, err
	}
	if err := r.confirm(ctx, o); err != nil {
		return nil, err
	}
	r.conclude(o.Corpus)
	return r, nil
}

// MaxHandover is the share of a call above which docs/problems.md asks for longer calls.
const MaxHandover = 0.05

// handover returns Report.Handover.
func handover(r *result.Result) (shares []float64) {
	raw := times(r, "raw.mean")
	for i, ns := range times(r, "handover") {
		if i == len(raw) || !(raw[i] > 0) || !(ns >= 0) || math.IsInf(ns, 1) {
			return nil
		}
		shares = append(shares, min(ns/raw[i], 1))
	}
	return shares
}

// honest evaluates the honest submission.
func (o Options) honest(ctx context.Context) (*result.Result, error) {
	t, err := o.trial("honest", o.Honest)
	if err != nil {
		return nil, err
	}
	var e Evaluation
	o.Evaluate(ctx, []Trial{t}, func(_ int, got Evaluation) { e = got })
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("evaluate the honest submission: %w", context.Cause(ctx))
	case e.TimedOut:
		return nil, fmt.Errorf("%w: it was ended after %s; allow more with --timeout", ErrHonest, o.Limit)
	case e.Err != nil:
		return nil, fmt.Errorf("evaluate the honest submission: %w", e.Err)
	}
	if why, ok := passed(e.Result); !ok {
		return nil, fmt.Errorf("%w: %s; fix it, or name another one", ErrHonest, text.Line(why, 300))
	}
	best := times(e.Result, "best")
	if len(best) == 0 || slices.ContainsFunc(best, func(ns float64) bool { return !(ns > 0) || math.IsInf(ns, 1) }) {
		return nil, fmt.Errorf("%w: the problem reports no benchmark.0.best above 0; report it, as kernelbot's eval.py does", ErrHonest)
	}
	return e.Result, nil
}

func (o Options) trial(name, submission string) (Trial, error) {
	doc, err := o.Task.Config(submission, o.Arch, Mode)
	if err != nil {
		return Trial{}, err
	}
	object, err := payload.ParseObject(doc)
	if err != nil {
		return Trial{}, fmt.Errorf("read payload: %w", err)
	}
	// As in a competition: without a secret seed, no attack could be surprised.
	object.Set("seed", payload.Int(strconv.Itoa(int(rand.Int32())))) //nolint:gosec // it is known to the author of the problem
	return Trial{Name: name, Payload: payload.JSON(object), Limit: o.Limit}, nil
}

// lacks returns what a machine lacks for an attack.
func lacks(n Needs, system *result.System) string {
	torch, gpu := system != nil && system.Torch != "", system != nil && system.GPU != ""
	switch {
	case n == GPU && !gpu:
		return "needs a GPU and torch"
	case n != Nothing && !torch:
		return "needs torch"
	}
	return ""
}

func (r *Report) add(o Options, row Row) {
	r.Attacks = append(r.Attacks, row)
	if o.On != nil {
		o.On(row, len(r.Attacks), len(o.Corpus.Attacks))
	}
}

func (r *Report) try(ctx context.Context, o Options, attacks []Attack) error {
	trials := make([]Trial, len(attacks))
	for i, a := range attacks {
		var err error
		if trials[i], err = o.trial(a.Name, a.Wrap(o.Honest)); err != nil {
			return err
		}
	}
	o.Evaluate(ctx, trials, func(i int, e Evaluation) {
		if ctx.Err() != nil {
			e = Evaluation{Err: errors.New("interrupted")}
		}
		r.add(o, judge(attacks[i], r.Honest, e))
	})
	return nil
}

// confirm tries the honest submission again, and the attacks that may owe their time to the machine's speed.
func (r *Report) confirm(ctx context.Context, o Options) error {
	var again []Attack
	for _, a := range o.Corpus.Attacks {
		if slices.ContainsFunc(r.Attacks, func(row Row) bool {
			return row.Attack == a.Name && row.Outcome == Won && row.Ratio >= Doubtful && !a.Wrong
		}) {
			again = append(again, a)
		}
	}
	if len(again) == 0 || ctx.Err() != nil {
		return nil
	}
	second, err := o.honest(ctx)
	if err != nil {
		return err
	}
	best := times(second, "best")
	for i := range min(len(best), len(r.Honest)) {
		r.Honest[i] = min(r.Honest[i], best[i])
	}
	r.Attacks = slices.DeleteFunc(r.Attacks, func(row Row) bool {
		return slices.ContainsFunc(again, func(a Attack) bool { return a.Name == row.Attack })
	})
	return r.try(ctx, o, again)
}

// conclude counts, sorts as the corpus is sorted, and says what would stop the winners.
func (r *Report) conclude(c *Corpus) {
	place := map[string]int{}
	for i, a := range c.Attacks {
		place[a.Name] = i
	}
	slices.SortFunc(r.Attacks, func(a, b Row) int { return place[a.Attack] - place[b.Attack] })
	for _, row := range r.Attacks {
		r.Counts[row.Outcome]++
		if cure := c.Cures[row.Kind]; row.Outcome == Won && cure != "" {
			r.Cures[row.Kind] = cure
		}
	}
	r.OK = r.Counts[Won] == 0 && r.Counts[Untried] == 0
}
