// Package compare compares the times of two submissions that were evaluated in turn, in rounds. A round has
// both, one after the other, so what slows the machine down for longer than a round slows both down, and
// leaves their ratio. All but Run is pure.
package compare

import (
	"math"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// Level is the probability with which all intervals of the benchmarks hold together, and that of the
	// overall interval.
	Level = 0.95
	// Same is the difference, of a time, below which no one needs to tell two submissions apart.
	Same = 0.01
)

// Bounds on rounds. Their number is fixed before the first one: to go on until a difference shows finds one
// between equal submissions, too.
const (
	MinRounds     = result.MinRounds
	MaxRounds     = result.MaxRounds
	DefaultRounds = 10
)

// Verdict says how the second submission's time compares with the first one's.
type Verdict string

// Verdicts.
const (
	Faster  Verdict = "faster"
	Slower  Verdict = "slower"
	Equal   Verdict = "the same"
	Noisy   Verdict = "too noisy to tell"
	Unknown Verdict = "too few rounds" // fewer than MinRounds, or than wanted because of an error
	// Implausible means that some times cannot be, so that nothing follows from any.
	Implausible Verdict = "implausible"
	// Withheld means that the rounds were made, and that what the job or its node says beside them keeps anyone from relying
	// on them.
	Withheld Verdict = "none"
)

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is a comparison. Its texts may be anyone's: escape them for people.
type Report struct {
	Schema     int         `json:"schema"`
	Time       time.Time   `json:"time"` // when the first round began
	Problem    string      `json:"problem"`
	Mode       string      `json:"mode"`
	Files      [2]string   `json:"files"`
	Wanted     int         `json:"rounds_wanted"`
	Stopped    string      `json:"stopped,omitempty"` // why there are fewer rounds, or no verdict
	Level      float64     `json:"level"`
	Same       float64     `json:"same_within"`
	Ranking    string      `json:"ranking_by"` // of the problem: geom, mean, last
	Overall    Difference  `json:"overall"`
	Benchmarks []Benchmark `json:"benchmarks"`
	Rounds     []Round     `json:"rounds"`
	Odd        []string    `json:"implausible,omitempty"` // why not to believe the times

	On string `json:"-"` // the machine, as result.json names it

	specs  []string // of the benchmarks
	calls  int      // single times in Rounds
	onNode bool     // made in a job
}

// Difference is the second submission's time over the first one's.
type Difference struct {
	Ratio   float64 `json:"ratio,omitempty"`
	Low     float64 `json:"low,omitempty"` // of the interval; 0 with a single round
	High    float64 `json:"high,omitempty"`
	Verdict Verdict `json:"verdict"`
}

// Benchmark is one benchmark in all rounds.
type Benchmark struct {
	Spec string     `json:"spec"`
	Mean [2]float64 `json:"mean_ns"` // the geometric mean of the rounds' means
	Difference
}

// Round is one evaluation of each submission.
type Round struct {
	First int          `json:"first"`   // which submission was evaluated first: 0 or 1
	Means [][2]float64 `json:"mean_ns"` // of each benchmark, for both submissions
	// Calls are the times of single calls of each benchmark, likewise, in the order in which they were made, if the judge
	// reports them of all. No verdict depends on them.
	Calls [][2][]float64 `json:"calls_ns,omitempty"`
}

// Judge fills in benchmarks, ratios, intervals and verdicts from the rounds, which have a mean for each spec.
func (r *Report) Judge(specs []string) {
	r.Benchmarks, r.Overall = nil, Difference{Verdict: Unknown}
	if len(r.Rounds) == 0 {
		return
	}
	// Bonferroni: with many benchmarks, one would otherwise differ by chance.
	level := 1 - (1-Level)/float64(max(1, len(specs)))
	for i, spec := range specs {
		b := Benchmark{Spec: spec}
		for side := range b.Mean {
			b.Mean[side] = math.Exp(mean(r.each(func(m [][2]float64) float64 { return math.Log(m[i][side]) })))
		}
		b.Difference = difference(r.each(func(m [][2]float64) float64 { return math.Log(m[i][1] / m[i][0]) }), level)
		r.Benchmarks = append(r.Benchmarks, b)
	}
	r.Overall = difference(r.each(r.score), Level)
	if len(r.Odd) > 0 {
		r.overrule(Implausible)
	}
}

// overrule sets all verdicts.
func (r *Report) overrule(v Verdict) {
	r.Overall.Verdict = v
	for i := range r.Benchmarks {
		r.Benchmarks[i].Verdict = v
	}
}

// Withhold takes the verdict back, if there is one.
func (r *Report) Withhold(why string) {
	if r.Done() {
		r.Stopped = text.Line(why, 300)
		r.overrule(Withheld)
	}
}

// Done reports whether all rounds were made, with times that can be, and the verdict stands.
func (r *Report) Done() bool { return r.Stopped == "" && len(r.Odd) == 0 }

// each returns a number of each round.
func (r *Report) each(number func([][2]float64) float64) (all []float64) {
	for _, round := range r.Rounds {
		all = append(all, number(round.Means))
	}
	return all
}

// score returns the logarithm of the ratio of both scores in a round, as the problem ranks.
func (r *Report) score(m [][2]float64) float64 {
	var sums [2]float64
	logs := 0.0
	for _, both := range m {
		sums[0] += both[0]
		sums[1] += both[1]
		logs += math.Log(both[1] / both[0])
	}
	if r.Ranking == "mean" {
		return math.Log(sums[1] / sums[0])
	}
	return logs / float64(len(m))
}

// difference returns the paired t-interval of logarithms of ratios. A submission that is compared with itself is called
// faster or slower with probability 1 - level.
func difference(logs []float64, level float64) Difference {
	center := mean(logs)
	d := Difference{Ratio: math.Exp(center), Verdict: Unknown}
	n := float64(len(logs))
	if n < 2 {
		return d
	}
	squares := 0.0
	for _, x := range logs {
		squares += (x - center) * (x - center)
	}
	half := quantile(len(logs)-1, level) * math.Sqrt(squares/(n-1)/n)
	const most = 700 // e to more is too large for JSON, which has no infinity
	d.Low, d.High = math.Exp(max(center-half, -most)), math.Exp(min(center+half, most))
	switch {
	case n < MinRounds:
	case d.High < 1:
		d.Verdict = Faster
	case d.Low > 1:
		d.Verdict = Slower
	case d.Low >= 1-Same && d.High <= 1+Same:
		d.Verdict = Equal
	default:
		d.Verdict = Noisy
	}
	return d
}

// RoundsFor returns about how many rounds, more than n, would tell Same apart where n rounds, 2 or more, were too noisy,
// or 0 if MaxRounds are too few. The interval is the overall one.
func (d Difference) RoundsFor(n int) int {
	half := func(n int) float64 { return quantile(n-1, Level) / math.Sqrt(float64(n)) } // of a deviation of 1
	deviation := (math.Log(d.High) - math.Log(d.Low)) / 2 / half(n)
	next := n + 1
	if half(n)*deviation <= math.Log1p(Same) { // the interval is narrow, but not around 0
		next = min(2*n, MaxRounds)
	}
	for ; next > n && next <= MaxRounds; next++ {
		if half(next)*deviation <= math.Log1p(Same) {
			return next
		}
	}
	return 0
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(len(all))
}
