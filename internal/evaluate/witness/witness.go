// Package witness compares the times that a task's program claims with what `kbnode runner` saw
// from outside: its own clock, and the CPU time of the program's processes, at each line of the
// report. It decides no verdict. docs/results.md has each threshold with its source.
package witness

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Finding is a reason why a claim is implausible, for people.
type Finding struct {
	Evaluation string `json:"evaluation"`
	Case       string `json:"case,omitempty"` // "benchmark.0"; "" if it is about all of them
	Reason     string `json:"reason"`         // a clause: "the mean is negative"
}

func (f Finding) String() string {
	where := f.Evaluation
	if f.Case != "" {
		where += ", " + f.Case
	}
	return where + ": " + f.Reason
}

// Bounds on findings. Their texts quote what a program reports.
const (
	MaxFindings = 32
	maxName     = 60  // characters of an evaluation or a case
	maxReason   = 400 // characters
)

// Mark is what the runner saw when a part of a report arrived. The time and energy that a GPU used belong here, too; the
// node samples them once per second, outside of the container.
type Mark struct {
	Bytes int           // of the report, up to here
	At    time.Duration // since just before the program's start
	CPU   time.Duration // that the program's processes used since then
}

// Evaluation is one run of the task's program.
type Evaluation struct {
	Name   string // test, benchmark or leaderboard, or that of a turn in a comparison
	Claims result.Pairs[string]
	Report []byte // as it arrived; Claims come from it
	Marks  []Mark // in order
	End    Mark   // when all processes were gone
}

// Job says what the evaluations ran on.
type Job struct {
	GPUs int // that the job sees; 0 without a vendor's driver
	// OnGPU means that the evaluation times a GPU, as far as that is known.
	OnGPU  bool
	Python bool // the submission is called by Python
	Apart  bool // it has a process without the clock; both sides spin while they wait
}

// Judge returns why claims are implausible, nil if none is.
func Judge(j Job, evaluations []Evaluation) []Finding {
	var all []*claims
	for i := range evaluations {
		all = append(all, read(&evaluations[i]))
	}
	var found []Finding
	usual := usualOf(all)
	for i, c := range all {
		for n := range c.cases {
			b := &c.cases[n]
			reasons := b.judge(j)
			if len(reasons) == 0 {
				reasons = c.idle(b, j, usual)
			}
			found = append(found, c.finding(b, reasons)...)
		}
		found = append(found, c.finding(nil, c.whole(j, usual))...)
		for _, before := range all[:i] { // a hundred in a comparison, and each may repeat all cases
			found = append(found, c.repeated(j, before, MaxFindings-len(found))...)
		}
		if len(found) >= MaxFindings {
			break
		}
	}
	return found[:min(len(found), MaxFindings)]
}

// claims are what one evaluation says, and the marks at which it said it.
type claims struct {
	*Evaluation
	cases       []benchmark
	named       map[string]*benchmark // of cases
	first, last Mark                  // of its lines; the same as End without any
}

// benchmark is one case. A number that it does not state is NaN.
type benchmark struct {
	name                              string // "benchmark.0"
	texts                             map[string]string
	runs, mean, std, err, best, worst float64
	// from is when what came before was reported, and to when the mean was.
	from, to Mark
}

// numbers are the keys of a benchmark that are times, and runs.
var numbers = []string{"runs", "mean", "std", "err", "best", "worst"}

// maxCases bounds the cases that are looked at: a report may have any number.
const maxCases = 1024

// read takes the cases that state a mean from a report.
func read(ev *Evaluation) *claims {
	c := &claims{Evaluation: ev, first: ev.End, last: ev.End}
	if len(ev.Marks) > 0 {
		c.first, c.last = ev.Marks[0], ev.Marks[len(ev.Marks)-1]
	}
	at := map[string]int{} // case by name
	for _, m := range ev.Claims {
		name, key := split(m.Key)
		if !slices.Contains(numbers, key) {
			continue
		}
		i, known := at[name]
		if !known {
			if len(c.cases) == maxCases {
				continue
			}
			i = len(c.cases)
			at[name] = i
			nan := math.NaN()
			c.cases = append(c.cases, benchmark{name: name, texts: map[string]string{}, runs: nan, mean: nan, std: nan, err: nan, best: nan, worst: nan, to: ev.End})
		}
		c.cases[i].set(key, m.Value)
	}
	c.cases = slices.DeleteFunc(c.cases, func(b benchmark) bool { return b.texts["mean"] == "" })
	c.named = make(map[string]*benchmark, len(c.cases))
	for i := range c.cases {
		c.named[c.cases[i].name] = &c.cases[i]
	}
	c.place()
	return c
}

// split returns the case and the rest of a key such as benchmark.0.mean.
func split(key string) (name, rest string) {
	kind, number, _ := strings.Cut(key, ".")
	number, rest, _ = strings.Cut(number, ".")
	if i, err := strconv.Atoi(number); kind != "benchmark" || err != nil || i < 0 {
		return "", ""
	}
	return kind + "." + number, rest
}

func (b *benchmark) set(key, value string) {
	b.texts[key] = value
	f, err := strconv.ParseFloat(value, 64)
	if err != nil { // beyond all numbers, or none
		f = math.NaN()
	}
	*map[string]*float64{"runs": &b.runs, "mean": &b.mean, "std": &b.std, "err": &b.err, "best": &b.best, "worst": &b.worst}[key] = f
}

// place finds when each case was reported: from the line before its first one to its last number. Some programs
// report what a case is before they run it, others after; so a case begins where the one before ended.
func (c *claims) place() {
	if len(c.Marks) == 0 {
		return
	}
	end, next, before := 0, 0, Mark{}
	current := ""
	for line := range bytes.Lines(c.Report) {
		end += len(line)
		for next < len(c.Marks)-1 && c.Marks[next].Bytes < end {
			next++
		}
		mark := c.Marks[next]
		key, _, _ := strings.Cut(string(line[:min(len(line), maxName)]), ":")
		name, rest := split(strings.TrimSpace(key))
		if b := c.named[name]; b != nil {
			if name != current {
				b.from, current = before, name
			}
			if slices.Contains(numbers, rest) {
				b.to = mark
			}
		}
		if name == "" || c.named[name] == nil || slices.Contains(numbers, rest) {
			before = mark
		}
	}
}

func (c *claims) finding(b *benchmark, reasons []string) (found []Finding) {
	name := ""
	if b != nil {
		name = b.name
	}
	for _, r := range reasons {
		found = append(found, Finding{text.Line(c.Name, maxName), text.Line(name, maxName), text.Line(r, maxReason)})
	}
	return found
}

// total is the time that a case says was measured, in ns.
func (b *benchmark) total() float64 { return b.runs * b.mean }

// total is the time that all cases say was measured.
func (c *claims) total() (ns float64) {
	for i := range c.cases {
		if t := c.cases[i].total(); t > 0 {
			ns += t
		}
	}
	return ns
}

// quoted shows a number as the program wrote it.
func (b *benchmark) quoted(key string) string { return fmt.Sprintf("%s %.40q", key, b.texts[key]) }

// span shows nanoseconds with three digits.
func span(ns float64) string {
	for _, u := range []struct {
		name string
		ns   float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if ns >= u.ns {
			return strconv.FormatFloat(ns/u.ns, 'g', 3, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(ns, 'g', 3, 64) + " ns"
}
