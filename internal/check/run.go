package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Options select the checks.
type Options[M Subject] struct {
	Checks []Check[M]
	// Only and Skip name checks or groups. Checks that the selected ones need run too, but
	// are not reported.
	Only, Skip []string
	Bare       bool          // only checks that can run before kbnode install
	Fast       bool          // no containers
	Limit      time.Duration // for all checks; 0 means DefaultLimit. Limits of single checks scale with it
	// Progress is called before each wait with the number of finished checks; it may be
	// nil.
	Progress func(done, all int)
	Log      *slog.Logger
}

// DefaultLimit is the time limit of all checks together.
const DefaultLimit = 55 * time.Second

const (
	checkTime = 10 * time.Second
	maxText   = 2 << 10 // characters of a sentence
)

// UnknownError means that a name is neither a check nor a group.
type UnknownError struct {
	Name string
	Near string // the one that was probably meant, or ""
}

func (e *UnknownError) Error() string {
	if e.Near != "" {
		return fmt.Sprintf("there is no check or group %q; write %s", e.Name, e.Near)
	}
	return fmt.Sprintf("there is no check or group %q; kbnode doctor --list shows them", e.Name)
}

// Unknown returns the error for a name, with the group or check that it is a typo of.
func Unknown[M Subject](checks []Check[M], name string) error {
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
func Run[M Subject](ctx context.Context, m M, o Options[M]) (*Report, error) {
	shown, err := o.Choose()
	if err != nil {
		return nil, err
	}
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	whole, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	r := &run[M]{m: m, log: o.Log, slower: float64(o.Limit) / float64(DefaultLimit), byID: map[string]*entry[M]{}, ended: make(chan *entry[M])}
	for _, c := range o.Checks {
		r.byID[c.ID] = &entry[M]{Check: c}
	}
	var wanted []*entry[M]
	for _, id := range WithNeeds(o.Checks, shown) {
		wanted = append(wanted, r.byID[id])
	}
	r.all(whole, wanted, o.Progress)
	if err := ctx.Err(); err != nil {
		return nil, err // interrupted
	}
	report := &Report{Schema: Schema, Fit: true, Checks: []Result{}}
	for _, c := range o.Checks {
		if !slices.Contains(shown, c.ID) || m.Lacks(c.Vendor) && !slices.Contains(o.Only, c.ID) {
			continue
		}
		result := r.byID[c.ID].result
		report.Checks = append(report.Checks, *result)
		report.Fit = report.Fit && result.Status < Fail
	}
	return report, nil
}

// Choose returns the IDs of the checks to report.
func (o Options[M]) Choose() ([]string, error) {
	names := func(c Check[M], list []string) bool {
		return slices.Contains(list, c.ID) || slices.Contains(list, c.Group)
	}
	for _, name := range slices.Concat(o.Only, o.Skip) {
		if !slices.ContainsFunc(o.Checks, func(c Check[M]) bool { return names(c, []string{name}) }) {
			return nil, Unknown(o.Checks, name)
		}
	}
	var ids []string
	for _, c := range o.Checks {
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

// WithNeeds adds the checks that ids need, recursively.
func WithNeeds[M Subject](checks []Check[M], ids []string) []string {
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

// entry is a check and its progress.
type entry[M Subject] struct {
	Check[M]
	begun  bool
	keep   func(M)
	result *Result // nil until it has ended
}

type run[M Subject] struct {
	m      M
	log    *slog.Logger
	slower float64 // factor on each check's time limit
	byID   map[string]*entry[M]
	ended  chan *entry[M] // copies that have ended, from their goroutines
}

// all starts each check when those it needs have ended, and collects the results. Only this
// goroutine writes the machine's fields, and only while no check that needs them runs. A
// check that ends too late changes nothing.
func (r *run[M]) all(ctx context.Context, wanted []*entry[M], progress func(done, all int)) {
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
		ended := <-r.ended
		if ended.keep != nil {
			ended.keep(r.m)
		}
		r.byID[ended.ID].result = ended.result
		done++
	}
}

// needs reports whether a check must wait, or returns why it cannot run.
func (r *run[M]) needs(a *entry[M]) (wait bool, why string) {
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
func (r *run[M]) ask(ctx context.Context, a entry[M]) {
	limit := a.Limit
	if limit == 0 {
		limit = checkTime
	}
	limit = time.Duration(float64(limit) * r.slower)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	answers := make(chan Answer[M], 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("check panicked", "check", a.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				answers <- finding[M](Finding{Status: Fail, Detail: fmt.Sprintf("kbnode crashed in this check: %v", p), Advice: "report it, with the file that sudo kbnode doctor --bundle FILE writes"})
			}
		}()
		answers <- a.Run(ctx, r.m)
	}()
	var answer Answer[M]
	select {
	case answer = <-answers:
	case <-ctx.Done():
		select {
		case answer = <-answers: // both are ready
		default:
			answer = finding[M](Finding{Status: a.Worst, Detail: fmt.Sprintf("no answer after %s", time.Since(began).Round(time.Second)), Advice: hanging(a.ID)})
		}
	}
	all := append([]Finding{}, answer.Findings...)
	for i, f := range all {
		all[i].Status = min(f.Status, max(a.Worst, Skip))
		// Process names, and texts from files and the network, may come from a job.
		all[i].Detail, all[i].Advice = text.Line(f.Detail, maxText), text.Line(f.Advice, maxText)
	}
	a.keep = answer.Keep
	a.result = &Result{
		ID: a.ID, Group: a.Group, About: a.About, Status: worst(all), Detail: text.Line(answer.Detail, maxText), Findings: all, Took: time.Since(began),
	}
	r.ended <- &a
}

func hanging(id string) string {
	return fmt.Sprintf("something that it reads hangs; try again, and see sudo dmesg and sudo journalctl -b -p err (kbnode doctor --only %s runs it alone)", id)
}

func skipped[M Subject](c Check[M], why string) *Result {
	return &Result{ID: c.ID, Group: c.Group, About: c.About, Status: Skip, Detail: why, Findings: []Finding{}}
}

func finding[M Subject](f Finding) Answer[M] { return Answer[M]{Findings: []Finding{f}} }
