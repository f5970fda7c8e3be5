package runner

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
)

// submission is one of a job, which has a second one in mode compare, and what only its programs get. What a compiler made
// for one is not given to the other, so that nothing of one depends on what the other compiles.
type submission struct {
	*config
	src       *sources
	compilers *compile.Service    // nil if each program must compile by itself
	preRan    bool                // by preRun
	compiled  *result.Compilation // its outcome
	evidence  []witness.Evaluation
}

// newSubmissions returns the submissions of a job. It writes nothing.
func newSubmissions(root *os.Root, c *config) (all []*submission, err error) {
	for _, c := range c.both() {
		src, err := newSources(root, c)
		if err != nil {
			return nil, err
		}
		all = append(all, &submission{config: c, src: src})
	}
	return all, nil
}

// otherSources is the payload's key of the second submission: its files, in place of those with the same names.
const otherSources = "other_sources"

// maxOutput bounds what the evaluations of a comparison report and print together, in bytes as they are in result.json and
// in memory. result.MaxBytes has room for more.
const maxOutput = 64 << 20

// comparison reads the fields of mode compare. In another mode, a second submission would not be evaluated, and no one
// would know.
func (f *fields) comparison(c *config) {
	if c.mode != result.ModeCompare {
		if _, given := f.Get(otherSources); given && c.mode != "" {
			f.refuse(`%s: mode %s evaluates one submission; write "mode": %q, or leave it out`, otherSources, c.mode, result.ModeCompare)
		}
		return
	}
	if rounds, ok := f.member("rounds"); ok {
		c.rounds = f.rounds(rounds)
	}
	v, given := f.member(otherSources)
	if !given {
		return
	}
	known := map[string]bool{}
	for _, file := range slices.Concat(c.sources, c.headers) {
		known[file.Key] = true
	}
	c.other = map[string]string{}
	for _, file := range f.texts(otherSources, v) {
		if !known[file.Key] {
			f.refuse("%s: %.100q is not among the sources; name a file that is, to put another in its place", otherSources, file.Key)
		}
		c.other[file.Key] = file.Value
	}
	if len(c.other) == 0 {
		f.refuse(`%s: has no file; write the second submission, as in "submission.py": "…"`, otherSources)
	}
	if c.benchmarks == "" && !c.last {
		f.refuse("benchmarks: mode %s needs one at least", c.mode)
	}
}

// rounds returns the number of rounds.
func (f *fields) rounds(v payload.Value) int {
	text, _ := v.(payload.Int)
	n, err := strconv.Atoi(string(text))
	if err != nil || n < result.MinRounds || n > result.MaxRounds {
		f.refuse("rounds: is %.100s; it must be a whole number from %d to %d", payload.Repr(v), result.MinRounds, result.MaxRounds)
	}
	return n
}

// both returns the configurations of all submissions: one, or two in mode compare.
func (c *config) both() []*config {
	if c.mode != result.ModeCompare {
		return []*config{c}
	}
	second := *c
	second.sources, second.headers = c.replaced(c.sources), c.replaced(c.headers)
	return []*config{c, &second}
}

// replaced returns the second submission's files, in the same order.
func (c *config) replaced(files result.Pairs[string]) (all result.Pairs[string]) {
	for _, f := range files {
		if text, other := c.other[f.Key]; other {
			f.Value = text
		}
		all = append(all, f)
	}
	return all
}

// turns returns the steps of mode compare.
func (c *config) turns() (steps []step) {
	for _, t := range result.Turns(c.rounds, c.tests != "") {
		s := step{name: t.Name(), side: t.Side, mode: "benchmark", cases: c.benchmarkLines(), limit: c.benchmark}
		if t.Round == 0 {
			s.mode, s.cases, s.limit = "test", c.tests, c.test
		}
		steps = append(steps, s)
	}
	return steps
}

// count adds what an evaluation reports and prints. It returns an error if that is more than a result may hold.
func (e *engine) count(ev *result.Evaluation) error {
	var texts []string
	if c := ev.Compilation; c != nil {
		texts = append(texts, c.Stdout, c.Stderr)
	}
	if r := ev.Run; r != nil {
		texts = append(texts, r.Stdout, r.Stderr)
		for _, m := range r.Result {
			texts = append(texts, m.Key, m.Value)
		}
	}
	for _, text := range texts {
		e.output += encodedSize(text)
	}
	if n := len(e.evidence); n > 0 {
		e.output += len(e.evidence[n-1].Report)
	}
	if e.output > maxOutput {
		return fmt.Errorf("the evaluations report more than %d bytes; compare in fewer rounds", maxOutput)
	}
	return nil
}

// implausible returns why the times of the submissions are, each judged by its own tests.
func (e *engine) implausible() (found []witness.Finding) {
	for _, s := range e.submissions {
		e.submission = s
		found = append(found, witness.Judge(e.clock(), s.evidence)...)
	}
	return found[:min(len(found), witness.MaxFindings)]
}
