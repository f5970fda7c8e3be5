package witness

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The thresholds. docs/results.md says where each comes from.
const (
	rounding   = 1e-6 // relative: some programs compute in single precision
	spreadOver = 1.05 // the deviation over the largest that best and worst allow
	errorOff   = 3    // the error over or below std / sqrt(runs)
	manyRuns   = 20   // that do not all take the same time

	clockOff  = 1.25                   // the claim over the time that passed
	clockRoom = 100 * time.Millisecond // and this much more

	pythonCall = 10.  // ns: the shortest call of a function
	gpuLaunch  = 100. // ns: the shortest time that is told between two events

	workOver  = 300.                  // the CPU time of a case over what it claims
	workRoom  = 50 * time.Millisecond // and at least this much, beyond what a test took
	workShort = 5000.                 // ns: the mean of what is looked at

	exitWork    = 5 * time.Second  // CPU time after the report, for each GPU
	startWork   = 10 * time.Second // CPU time before the report
	startFactor = 10.              // and over that of the tests

	repeatRuns = 10   // of which two evaluations are not the same
	repeatTick = 8.   // clock ticks, the least deviation that is never the same
	cpuTick    = 42.  // ns: of a counter of 24 MHz, the slowest in use
	gpuTick    = 500. // ns: of events
)

// usual is what the job's tests took. Its CPU times are negative if there were none.
type usual struct {
	start time.Duration // CPU time before the report
	// first is the most CPU time from one line of it to the next, and more the second most. A program may start one
	// process in its first case, or one for each.
	first, more time.Duration
}

// usualOf looks at the tests: they make inputs, call and check as benchmarks do, but once.
func usualOf(all []*claims) usual {
	for _, c := range all {
		if kind, _, _ := strings.Cut(c.Name, "."); kind != "test" || len(c.Marks) < 2 { // test.A in a comparison
			continue
		}
		u := usual{start: c.first.CPU}
		for i, m := range c.Marks[1:] {
			took := m.CPU - c.Marks[i].CPU
			u.first, u.more = max(u.first, took), max(u.more, min(u.first, took))
		}
		return u
	}
	return usual{-1, -1, -1}
}

// judge returns what is wrong with a case.
func (b *benchmark) judge(j Job) (reasons []string) {
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	for _, key := range numbers {
		value, stated := b.texts[key]
		f, err := strconv.ParseFloat(value, 64)
		switch {
		case !stated:
		case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
			say("%s is not a finite number", b.quoted(key))
		case f < 0:
			say("%s is negative", b.quoted(key))
		case key == "mean" && f == 0:
			say("%s is zero: nothing takes no time", b.quoted(key))
		case key == "runs" && (f < 1 || f != math.Trunc(f)):
			say("%s is not a positive whole number", b.quoted(key))
		}
	}
	if len(reasons) > 0 {
		return reasons
	}
	for _, r := range []string{b.order(), b.spread(), b.error(), b.floor(j)} {
		if r != "" {
			reasons = append(reasons, r)
		}
	}
	return reasons
}

// order compares best, mean and worst. All comparisons with a number that is not stated are false.
func (b *benchmark) order() string {
	if b.best > b.mean*(1+rounding) || b.mean > b.worst*(1+rounding) || b.best > b.worst*(1+rounding) {
		return fmt.Sprintf("%s, %s and %s are not in this order", b.quoted("best"), b.quoted("mean"), b.quoted("worst"))
	}
	return ""
}

// spread compares the deviation with best and worst.
func (b *benchmark) spread() string {
	apart := b.worst - b.best
	switch {
	case b.std == 0 && apart > b.mean*rounding:
		return fmt.Sprintf("std is zero, but best and worst are %s apart", span(apart))
	case b.std == 0 && b.runs >= manyRuns:
		return fmt.Sprintf("all %.0f runs took exactly %s; times of so many calls differ", b.runs, span(b.mean))
	case b.runs == 1 && b.std > b.mean*rounding:
		return fmt.Sprintf("%s is of one run, which has no deviation", b.quoted("std"))
	case b.runs > 1 && b.std > spreadOver*apart/2*math.Sqrt(b.runs/(b.runs-1))+b.mean*rounding:
		return fmt.Sprintf("%s is larger than best and worst allow, which are %s apart", b.quoted("std"), span(apart))
	}
	return ""
}

// error compares the error of the mean with the deviation.
func (b *benchmark) error() string {
	want, little := b.std/math.Sqrt(b.runs), b.mean*rounding
	if b.err > errorOff*want+little || b.err < want/errorOff-little {
		return fmt.Sprintf("%s is not that of %.0f runs with %s; it would be %s", b.quoted("err"), b.runs, b.quoted("std"), span(want))
	}
	return ""
}

// floor compares the mean with what a call costs.
func (b *benchmark) floor(j Job) string {
	switch {
	case j.OnGPU && b.mean < gpuLaunch:
		return fmt.Sprintf("a mean of %s is less than any work on a GPU takes", span(b.mean))
	case j.Python && b.mean < pythonCall:
		return fmt.Sprintf("a mean of %s is less than Python needs to call a function", span(b.mean))
	case j.Python && !j.OnGPU && b.best > 0 && b.best < pythonCall: // programs that subtract something may reach zero
		return fmt.Sprintf("a best time of %s is less than Python needs to call a function", span(b.best))
	}
	return ""
}

// idle compares the CPU time of a case with what it claims to have measured, where no GPU does the work. The tests say
// what a program, or a worker, takes to start.
func (c *claims) idle(b *benchmark, j Job, u usual) []string {
	if j.GPUs > 0 || j.OnGPU || !j.Python || j.Apart || u.first < 0 || !(b.total() > 0) {
		return nil
	}
	for i := range c.cases {
		if o := &c.cases[i]; o != b && o.to == b.to { // reported together: the CPU time is of both
			return nil
		}
	}
	took := b.to.CPU - b.from.CPU
	start := u.more
	if b == &c.cases[0] {
		start = u.first
	}
	if b.from.Bytes == 0 { // from the program's start
		start = u.first + u.start
	}
	claim, runs := b.total(), b.runs
	if b.worst < claim && runs > 1 { // one call that was interrupted says nothing about the others
		claim, runs = claim-b.worst, runs-1
	}
	if used := took - start; used < max(workRoom, start/2) || claim > workShort*runs || float64(used) < workOver*claim {
		return nil
	}
	return []string{fmt.Sprintf("%.0f runs of %s are less than 1/%.0f of the %s of CPU time that the case took", runs, span(claim/runs), workOver, span(float64(took)))}
}

// whole returns what is wrong with all cases together.
func (c *claims) whole(j Job, u usual) (reasons []string) {
	if len(c.cases) == 0 {
		return nil
	}
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	gpus := max(1, j.GPUs)
	claim := 0.
	for i := range c.cases {
		b := &c.cases[i]
		if t := b.total(); t > 0 { // not of a case that states no number of runs
			claim += t
		}
		if passed := float64(b.to.At); claim > float64(gpus)*clockOff*passed+float64(clockRoom) {
			say("up to %s, runs × mean are %s, but only %s had passed since the program's start", b.name, span(claim), span(passed))
			break
		}
	}
	if j.Apart {
		return reasons
	}
	claim = c.total()
	if after := c.End.CPU - c.last.CPU; after > time.Duration(gpus)*exitWork && float64(after) > claim {
		say("the program used %s of CPU time after its last line, more than the %s that it reports", span(float64(after)), span(claim))
	}
	if before := c.first.CPU; j.GPUs == 0 && !j.OnGPU && u.start >= 0 && before > startWork && float64(before) > startFactor*float64(u.start) && float64(before) > startFactor*claim {
		say("the program used %s of CPU time before its first line; with tests it was %s", span(float64(before)), span(float64(u.start)))
	}
	return reasons
}

// repeated returns the cases with the same numbers, to the last digit, as in an evaluation before: that many at most.
func (c *claims) repeated(j Job, before *claims, most int) (found []Finding) {
	tick := cpuTick
	if j.OnGPU || j.GPUs > 0 {
		tick = gpuTick
	}
	for i := range c.cases {
		if len(found) >= most {
			break
		}
		b := &c.cases[i]
		if b.std < repeatTick*tick || b.runs < repeatRuns || len(b.texts) < len(numbers) {
			continue
		}
		if o := before.named[b.name]; o != nil && o.same(b) {
			found = append(found, c.finding(b, []string{fmt.Sprintf("all numbers are those of %s, to the last digit", before.Name)})...)
		}
	}
	return found
}

func (b *benchmark) same(o *benchmark) bool {
	for _, key := range numbers {
		if b.texts[key] != o.texts[key] {
			return false
		}
	}
	return true
}
