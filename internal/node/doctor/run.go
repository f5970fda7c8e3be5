package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Options select the checks.
type Options struct {
	Checks []Check // nil means All
	// Only and Skip name checks or groups. Checks that the selected ones need run too, and
	// are reported if they fail.
	Only, Skip []string
	Bare       bool                             // only checks that can run before kbnode install
	Fast       bool                             // no containers
	Limit      time.Duration                    // for all checks; 0 means DefaultLimit. Limits of single checks scale with it
	Say        func(format string, args ...any) // receives what runs alone; it may be nil
	Log        *slog.Logger
}

// DefaultLimit is the time limit of all checks together.
const DefaultLimit = 55 * time.Second

// notRecorded is why a check is skipped on a recorded machine.
const notRecorded = "not recorded; only the machine itself can tell"

const (
	checkTime = 10 * time.Second
	aloneTime = time.Hour
	maxText   = 2 << 10 // characters of a sentence
)

// UnknownError means that a name is neither a check nor a group.
type UnknownError struct {
	Name string
	Near string // the one that was probably meant, or ""
}

// verdictForm matches what the daemon's verdicts are named.
var verdictForm = lazy.Regexp(`^(gpu|node|slot)\.[a-z]+$`)

func (e *UnknownError) Error() string {
	if verdictForm().MatchString(e.Name) {
		return fmt.Sprintf("%q is a verdict of the daemon, and no check; sudo kbnode status shows those that hold and what to type, and %shealth.md explains all", e.Name, Pages)
	}
	if e.Near != "" {
		return fmt.Sprintf("there is no check or group %q; write %s", e.Name, e.Near)
	}
	return fmt.Sprintf("there is no check or group %q; kbnode doctor --list shows them", e.Name)
}

// unknown returns the error for a name, with the group or check that it is a typo of.
func unknown(checks []Check, name string) error {
	e := &UnknownError{Name: name}
	best := 3
	for _, c := range checks {
		for _, known := range []string{c.Group, c.ID} {
			if d := text.Edits(known, name); d < best {
				e.Near, best = known, d
			}
		}
	}
	return e
}

// ErrNothingLeft means that the options exclude every check.
var ErrNothingLeft = errors.New("these options leave out every check; kbnode doctor --list shows the checks and their groups")

// Run runs the selected checks, concurrently unless they need each other. It ends within
// Limit, even if something hangs.
func Run(ctx context.Context, m *Machine, o Options) (*Report, error) {
	if o.Checks == nil {
		o.Checks = All()
	}
	shown, err := o.Choose()
	if err != nil {
		return nil, err
	}
	o.Limit, o.Log = cmp.Or(o.Limit, DefaultLimit), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	whole, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	var first []string
	if o.Bare {
		o.Checks, first = firstOf(o.Checks)
	}
	r := &run{Options: o, m: m, byID: map[string]*entry{}}
	for _, id := range withNeeds(o.Checks, shown) {
		i := slices.IndexFunc(o.Checks, func(c Check) bool { return c.ID == id })
		r.byID[id] = &entry{Check: o.Checks[i], done: make(chan struct{})}
	}
	var group sync.WaitGroup
	for _, e := range r.byID {
		if !e.Alone {
			group.Go(func() { r.one(whole, e) })
		}
	}
	group.Wait()
	for _, c := range o.Checks {
		if e := r.byID[c.ID]; e != nil && e.Alone && ctx.Err() == nil {
			if o.Say != nil {
				o.Say("%s: %s", e.ID, e.About)
			}
			r.one(ctx, e)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err // interrupted
	}
	report := &Report{Schema: Schema, Recorded: m.Recorded, Fit: true, Checks: []Result{}}
	report.Cut = slices.ContainsFunc(first, func(id string) bool { return r.byID[id].result.Status == Fail })
	for _, c := range o.Checks {
		e := r.byID[c.ID]
		if e == nil || m.lacks(c.Vendor) && !slices.Contains(o.Only, c.ID) {
			continue
		}
		result := e.result
		if result.Status != Fail && (report.Cut || !slices.Contains(shown, c.ID)) {
			continue
		}
		report.Checks = append(report.Checks, *result)
		report.Fit = report.Fit && result.Status < Fail
	}
	return report, nil
}

// Choose returns the IDs of the checks to report.
func (o Options) Choose() ([]string, error) {
	names := func(c Check, list []string) bool {
		return slices.Contains(list, c.ID) || slices.Contains(list, c.Group)
	}
	for _, name := range slices.Concat(o.Only, o.Skip) {
		if !slices.ContainsFunc(o.Checks, func(c Check) bool { return names(c, []string{name}) }) {
			return nil, unknown(o.Checks, name)
		}
	}
	var ids []string
	for _, c := range o.Checks {
		left := o.Bare && !c.Bare || o.Fast && c.Slow || names(c, o.Skip) || (len(o.Only) > 0 || c.Alone) && !names(c, o.Only)
		if !left {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) == 0 {
		return nil, ErrNothingLeft
	}
	return ids, nil
}

// firstOf returns the checks so that they need those that come first, and the IDs of these and of what these need.
func firstOf(checks []Check) (all []Check, first []string) {
	for _, c := range checks {
		if c.First {
			first = append(first, c.ID)
		}
	}
	ids := withNeeds(checks, first)
	for _, c := range checks {
		if !slices.Contains(ids, c.ID) {
			c.Needs = slices.Concat(first, c.Needs)
		}
		all = append(all, c)
	}
	return all, ids
}

// withNeeds adds the checks that ids need, recursively.
func withNeeds(checks []Check, ids []string) []string {
	all := slices.Clone(ids)
	for i := 0; i < len(all); i++ {
		for _, c := range checks {
			if c.ID != all[i] {
				continue
			}
			for _, need := range slices.Concat(c.Needs, c.After) {
				if !slices.Contains(all, need) {
					all = append(all, need)
				}
			}
		}
	}
	return all
}

// entry is a check and its outcome.
type entry struct {
	Check
	done   chan struct{} // closed when it has ended, and the machine has what it read
	result *Result
}

type run struct {
	Options
	m    *Machine
	byID map[string]*entry
	mu   sync.Mutex // only one check at a time writes what it has read
}

// one runs a check when those that it needs have ended. A check that ends too late changes nothing.
func (r *run) one(ctx context.Context, e *entry) {
	defer close(e.done)
	if r.m.Recorded != "" && !e.Recorded {
		e.result = &Result{ID: e.ID, Group: e.Group, About: e.About, Status: Skip, Detail: notRecorded, Findings: []Finding{}}
		return
	}
	for _, id := range e.After {
		<-r.byID[id].done
	}
	for _, id := range e.Needs {
		need := r.byID[id]
		<-need.done
		if status := need.result.Status; status == Fail || status == Skip {
			why := need.result.Summary() // the first cause helps most
			if status == Fail {
				why = id + " failed"
			}
			e.result = &Result{ID: e.ID, Group: e.Group, About: e.About, Status: Skip, Detail: why, Findings: []Finding{}}
			return
		}
	}
	if keep := r.ask(ctx, e); keep != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		keep(r.m)
	}
}

// ask runs one check for at most its time limit. It abandons a function that hangs in the
// kernel, unless it is alone: then it may have to clean up.
func (r *run) ask(ctx context.Context, a *entry) (keep func(*Machine)) {
	limit := time.Duration(float64(cmp.Or(a.Limit, checkTime)) * float64(r.Limit) / float64(DefaultLimit))
	if a.Alone {
		limit = aloneTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	answers := make(chan Answer, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.Log.Error("check panicked", "check", a.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				answers <- found(fail("kbnode crashed in this check: %v", p).Advise("report it, with the file that sudo kbnode doctor --bundle FILE writes"))
			}
		}()
		answers <- a.Run(ctx, r.m)
	}()
	var answer Answer
	over := ctx.Done()
	if a.Alone {
		over = nil
	}
	select {
	case answer = <-answers:
	case <-over:
		select {
		case answer = <-answers: // both are ready
		default:
			f := fail("no answer after %s", time.Since(began).Round(time.Second)).
				Advise("something that it reads hangs; try again, and see sudo dmesg and sudo journalctl -b -p err (kbnode doctor --only %s runs it alone)", a.ID)
			answer = found(f) // no worse than the check may be
		}
	}
	all := append([]Finding{}, answer.Findings...)
	for i, f := range all {
		all[i].Status = min(f.Status, max(a.Worst, Skip))
		// Process names, and texts from files and the network, may come from a job.
		all[i].Detail, all[i].Advice = text.Line(f.Detail, maxText), text.Line(f.Advice, maxText)
	}
	a.result = &Result{
		ID: a.ID, Group: a.Group, About: a.About, Status: worst(all), Detail: text.Line(answer.Detail, maxText), Findings: all, Took: time.Since(began),
	}
	return answer.Keep
}
