package arena

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Mode is the mode of the evaluations: the one that ranks.
const Mode = "leaderboard"

// An attack has won if the mean that it claims is less than Less of the honest best time. Of a single call, less
// than OfOneCall is enough: the others may have been disturbed. From Doubtful on, a machine with other work may have
// been slow for the honest submission alone, so both are tried again.
const (
	Less      = 0.9
	OfOneCall = 0.5
	Doubtful  = 0.1
)

// Outcome says how an attack fared.
type Outcome string

// Outcomes of attacks.
const (
	Won     Outcome = "won"
	Stopped Outcome = "stopped"
	Broken  Outcome = "broken"    // its own code failed, so it proves nothing
	Skipped Outcome = "skipped"   // needs what is not there
	Untried Outcome = "not tried" // interrupted, or there was no result
)

// Evaluation is what came back of an evaluation.
type Evaluation struct {
	Result   *result.Result
	Err      error  // why there is no result
	TimedOut bool   // it took longer than it may
	Witness  string // what the runner found implausible
}

// Row is the report on an attack.
type Row struct {
	Attack  string  `json:"attack"`
	Kind    string  `json:"kind"`
	Tries   string  `json:"tries"`
	Source  string  `json:"source"`
	Outcome Outcome `json:"outcome"`
	Verdict string  `json:"verdict"`             // may quote what a program reports: escape it for a terminal
	Claimed float64 `json:"claimed_ns"`          // in the benchmark that it makes the fastest
	Honest  float64 `json:"honest_ns,omitempty"` // best time of the honest submission there
	Ratio   float64 `json:"ratio"`
	Witness string  `json:"witness,omitempty"`
}

// maxVerdict is the maximum length of a verdict, in characters.
const maxVerdict = 160

// times returns the values of a key of all benchmarks that the leaderboard run reports, in nanoseconds. What is
// no number is NaN.
func times(r *result.Result, key string) (all []float64) {
	ev := r.Runs.Get(Mode)
	if ev == nil || ev.Run == nil {
		return nil
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("benchmark.%d.%s", i, key)
		if !ev.Run.Result.Has(name) {
			return all
		}
		v, err := strconv.ParseFloat(ev.Run.Result.Get(name), 64)
		if err != nil && !math.IsInf(v, 0) {
			v = math.NaN()
		}
		all = append(all, v)
	}
}

// passed reports whether all runs of a leaderboard evaluation passed and, if not, why not.
func passed(r *result.Result) (why string, ok bool) {
	if !r.Success {
		return r.Error, false
	}
	for _, name := range task.Runs(Mode) {
		ev := r.Runs.Get(name)
		switch {
		case ev == nil || ev.Run == nil:
			return name + ": did not run", false
		case ev.Run.Passed && ev.Run.Success:
			continue
		}
		return name + ": " + failure(ev.Run), false
	}
	return "", true
}

// failure returns the first thing that a run reports as wrong.
func failure(run *result.Run) string {
	for _, m := range run.Result {
		if strings.HasSuffix(m.Key, ".error") {
			return m.Value
		}
	}
	lines := strings.Split(strings.TrimSpace(run.Stderr), "\n")
	switch last := lines[len(lines)-1]; {
	case run.ExitCode == result.ExitTimeout:
		return "exceeded its time limit"
	case last != "" && !strings.HasPrefix(last, mark):
		return fmt.Sprintf("exit code %d: %s", run.ExitCode, last)
	}
	return fmt.Sprintf("exit code %d", run.ExitCode)
}

// mark begins the lines that harness.py writes to standard error.
const mark = "kbnode cheats: "

// noted returns the first text that an attack wrote about itself, with this word before it.
func noted(r *result.Result, word string) (text string, found bool) {
	for _, m := range r.Runs {
		if m.Value.Run == nil {
			continue
		}
		for line := range strings.Lines(m.Value.Run.Stderr) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), mark+word+": "); ok {
				return text, true
			}
		}
	}
	return "", false
}

// wasWrong reports whether an attack that means to give a wrong output gave one: it says so, unless the problem
// keeps what it writes.
func wasWrong(r *result.Result) bool {
	for _, word := range []string{"armed", "missed", "broken"} {
		if _, says := noted(r, word); says {
			_, is := noted(r, "wrong")
			return is
		}
	}
	return true
}

// judge reports how an attack fared beside the honest times.
func judge(a Attack, honest []float64, e Evaluation) Row {
	row := Row{Attack: a.Name, Kind: a.Kind, Tries: a.Tries, Source: a.Source, Outcome: Stopped, Witness: text.Line(e.Witness, maxVerdict)}
	defer func() { row.Verdict = text.Line(row.Verdict, maxVerdict) }()
	switch {
	case e.TimedOut:
		row.Verdict = "ended by the time limit"
		return row
	case e.Err != nil:
		row.Outcome, row.Verdict = Untried, e.Err.Error()
		return row
	}
	why, ok := passed(e.Result)
	if !ok {
		row.Verdict = why
		return broken(row, e.Result)
	}
	row.Verdict = "passed"
	odd := row.compare(honest, times(e.Result, "mean"))
	if odd == "" && row.Ratio >= Less {
		call := row
		call.compare(honest, times(e.Result, "best"))
		if call.Ratio < OfOneCall {
			row, row.Verdict = call, "passed; its best call is below what is possible"
		}
	}
	switch {
	case a.Wrong && wasWrong(e.Result):
		row.Outcome, row.Verdict = Won, "passed with a wrong output"
	case odd != "":
		row.Outcome, row.Verdict = Won, "passed with a time of "+odd
	case row.Honest > 0 && row.Ratio < Less:
		row.Outcome = Won
	case row.Honest == 0:
		row.Verdict = "passed without a time"
	}
	if row.Outcome == Won {
		return row
	}
	return broken(row, e.Result)
}

// compare fills in the claim that is lowest beside the honest one. It returns a claim that is no finite number.
func (row *Row) compare(honest, claims []float64) (odd string) {
	row.Honest = 0
	for i, claim := range claims[:min(len(claims), len(honest))] {
		if math.IsNaN(claim) || math.IsInf(claim, -1) {
			row.Claimed, row.Honest, row.Ratio = 0, honest[i], 0
			return strconv.FormatFloat(claim, 'g', -1, 64)
		}
		if ratio := claim / honest[i]; !math.IsInf(ratio, 1) && (row.Honest == 0 || ratio < row.Ratio) {
			row.Claimed, row.Honest, row.Ratio = claim, honest[i], ratio
		}
	}
	return ""
}

// broken tells an attack whose own code failed, or that found nothing to attack, from one that was stopped.
func broken(row Row, r *result.Result) Row {
	if why, is := noted(r, "broken"); is {
		row.Outcome, row.Verdict = Broken, why
		return row
	}
	_, armed := noted(r, "armed")
	if why, missed := noted(r, "missed"); missed && !armed {
		row.Verdict += "; " + why
	}
	return row
}
