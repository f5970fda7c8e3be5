package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Options select the checks.
type Options struct {
	Checks []Check // nil means All
	// Only and Skip name checks or groups. Checks that the selected ones need run too, but
	// are not reported.
	Only, Skip []string
	Bare       bool          // only checks that can run before kbnode install
	Fast       bool          // no containers
	Limit      time.Duration // for all checks; 0 means 55 seconds. Limits of single checks scale with it
	// Progress is called before each wait with the number of finished checks; it may be
	// nil.
	Progress func(done, all int)
	Log      *slog.Logger
}

const (
	wholeTime = 55 * time.Second
	checkTime = 10 * time.Second
	maxText   = 2 << 10 // characters of a sentence
)

// UnknownError means that a name is neither a check nor a group.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no check or group %q; kbnode doctor --list shows them", e.Name)
}

// ErrNothingLeft means that the options exclude every check.
var ErrNothingLeft = errors.New("these options leave out every check; kbnode doctor --list shows the checks and their groups")

// Run runs the selected checks, concurrently unless they need each other. It ends within
// Limit, even if something hangs.
func Run(ctx context.Context, m *Machine, o Options) (*Report, error) {
	checks := o.Checks
	if checks == nil {
		checks = All()
	}
	shown, err := o.choose(checks)
	if err != nil {
		return nil, err
	}
	if o.Limit == 0 {
		o.Limit = wholeTime
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	whole, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	r := &run{m: m, log: o.Log, slower: float64(o.Limit) / float64(wholeTime), byID: map[string]*asked{}, asked: make(chan *asked)}
	for _, c := range checks {
		r.byID[c.ID] = &asked{Check: c}
	}
	var wanted []*asked
	for _, id := range withNeeds(checks, shown) {
		wanted = append(wanted, r.byID[id])
	}
	r.all(whole, wanted, o.Progress)
	if err := ctx.Err(); err != nil {
		return nil, err // interrupted
	}
	report := &Report{Schema: Schema, Fit: true, Checks: []Result{}}
	for _, c := range checks {
		if !slices.Contains(shown, c.ID) || m.foreign(c) && !slices.Contains(o.Only, c.ID) {
			continue
		}
		result := r.byID[c.ID].result
		report.Checks = append(report.Checks, *result)
		report.Fit = report.Fit && result.Status < Fail
	}
	return report, nil
}

// foreign reports whether a check is about GPUs of a vendor that the machine has none of,
// while it has another vendor's.
func (m *Machine) foreign(c Check) bool {
	if m.Inventory == nil {
		return false
	}
	nvidia, amd := m.Inventory.NVIDIA != nil, m.Inventory.AMD != nil
	return c.Vendor == "nvidia" && amd && !nvidia || c.Vendor == "amd" && nvidia && !amd
}

// choose returns the IDs of the checks to report.
func (o Options) choose(checks []Check) ([]string, error) {
	names := func(c Check, list []string) bool {
		return slices.Contains(list, c.ID) || slices.Contains(list, c.Group)
	}
	for _, name := range slices.Concat(o.Only, o.Skip) {
		if !slices.ContainsFunc(checks, func(c Check) bool { return names(c, []string{name}) }) {
			return nil, &UnknownError{name}
		}
	}
	var ids []string
	for _, c := range checks {
		left := o.Bare && !c.Bare || o.Fast && c.Slow || names(c, o.Skip) || len(o.Only) > 0 && !names(c, o.Only)
		if !left {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) == 0 {
		return nil, ErrNothingLeft
	}
	return ids, nil
}

// withNeeds adds the checks that ids need, recursively.
func withNeeds(checks []Check, ids []string) []string {
	all := slices.Clone(ids)
	for i := 0; i < len(all); i++ {
		for _, c := range checks {
			if c.ID != all[i] {
				continue
			}
			for _, need := range c.Needs {
				if !slices.Contains(all, need) {
					all = append(all, need)
				}
			}
		}
	}
	return all
}

// asked is a check and its progress.
type asked struct {
	Check
	begun  bool
	keep   func(*Machine)
	result *Result // nil until it has ended
}

type run struct {
	m      *Machine
	log    *slog.Logger
	slower float64 // factor on each check's time limit
	byID   map[string]*asked
	asked  chan *asked // copies that have ended, from their goroutines
}

// all starts each check when those it needs have ended, and collects the results. Only this
// goroutine writes the machine's fields, and only while no check that needs them runs. A
// check that ends too late changes nothing.
func (r *run) all(ctx context.Context, wanted []*asked, progress func(done, all int)) {
	for done := 0; done < len(wanted); {
		begun := false
		for _, a := range wanted {
			if a.result != nil || a.begun {
				continue
			}
			switch wait, why := r.needs(a); {
			case wait:
			case why != "":
				a.result, begun = skipped(a.Check, why), true
				done++
			default:
				a.begun, begun = true, true
				go r.ask(ctx, *a)
			}
		}
		if begun {
			continue // others may wait for a skipped check
		}
		if progress != nil {
			progress(done, len(wanted))
		}
		ended := <-r.asked
		if ended.keep != nil {
			ended.keep(r.m)
		}
		r.byID[ended.ID].result = ended.result
		done++
	}
}

// needs reports whether a check must wait, or returns why it cannot run.
func (r *run) needs(a *asked) (wait bool, why string) {
	for _, id := range a.Needs {
		need := r.byID[id]
		if need.result == nil {
			wait = true
			continue
		}
		switch need.result.Status {
		case Fail:
			return false, fmt.Sprintf("%s failed", id)
		case Skip:
			return false, need.result.Summary() // the first cause helps most
		}
	}
	return wait, ""
}

// ask runs one check for at most its time limit. It abandons a function that hangs in the
// kernel.
func (r *run) ask(ctx context.Context, a asked) {
	limit := a.Limit
	if limit == 0 {
		limit = checkTime
	}
	limit = time.Duration(float64(limit) * r.slower)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	answers := make(chan Answer, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("check panicked", "check", a.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				answers <- found(fail("kbnode crashed in this check: %v", p).advise("report it, with the file that sudo kbnode doctor --bundle FILE writes"))
			}
		}()
		answers <- a.Run(ctx, r.m)
	}()
	var answer Answer
	select {
	case answer = <-answers:
	case <-ctx.Done():
		select {
		case answer = <-answers: // both are ready
		default:
			answer = found(Finding{Status: a.Worst, Detail: fmt.Sprintf("no answer after %s", time.Since(began).Round(time.Second)), Advice: hanging(a.Check)})
		}
	}
	for i, f := range answer.Findings {
		f.Status = min(f.Status, max(a.Worst, Skip))
		// Process names, and texts from files and the network, may come from a job.
		f.Detail, f.Advice = text.Line(f.Detail, maxText), text.Line(f.Advice, maxText)
		answer.Findings[i] = f
	}
	answer.Detail = text.Line(answer.Detail, maxText)
	if len(answer.Findings) == 0 {
		answer.Findings = []Finding{}
	}
	a.keep = answer.Keep
	a.result = &Result{
		ID: a.ID, Group: a.Group, About: a.About, Status: worst(answer.Findings), Detail: answer.Detail,
		Findings: answer.Findings, Took: time.Since(began),
	}
	r.asked <- &a
}

func hanging(c Check) string {
	return fmt.Sprintf("something that it reads hangs; try again, and see sudo dmesg and sudo journalctl -b -p err (kbnode doctor --only %s runs it alone)", c.ID)
}

func skipped(c Check, why string) *Result {
	return &Result{ID: c.ID, Group: c.Group, About: c.About, Status: Skip, Detail: why, Findings: []Finding{}}
}

// lines joins the lines of an error.
func lines(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
