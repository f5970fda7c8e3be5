// Package acceptance goes through what a vendor shows the operators before a node
// goes live. Each item is tried on the node itself; what cannot be tried from
// there is on the list too, for somebody to do by hand.
package acceptance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/selftest"
)

// Verdict is what came of an item.
type Verdict string

// Verdicts of items.
const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Untried Verdict = "not tried" // and so the node is not accepted
	ByHand  Verdict = "by hand"   // it cannot be tried from the node
)

// Item is one line of the list.
type Item struct {
	ID      string  `json:"id"` // stable; docs/install.md tells of each
	About   string  `json:"about"`
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"`
	Do      string  `json:"do,omitempty"` // what to type or to do, where it did not pass
	Seconds float64 `json:"seconds"`
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is the list, filled in.
type Report struct {
	Schema   int       `json:"schema"`
	Time     time.Time `json:"time"`     // of its beginning
	Accepted bool      `json:"accepted"` // nothing failed, and all was tried that can be
	Items    []Item    `json:"items"`
}

// Count is how many items came to a verdict.
func (r *Report) Count(v Verdict) (n int) {
	for _, i := range r.Items {
		if i.Verdict == v {
			n++
		}
	}
	return n
}

// Agent is a slot's agent at one moment.
type Agent struct {
	PID        int  // 0 while none runs
	Registered bool // with Buildkite, since it was started
}

// Node is what is tried.
type Node interface {
	Doctor(ctx context.Context) (*doctor.Report, error)
	// Selftest is the report of the node itself and one of each slot.
	Selftest(ctx context.Context) ([]selftest.SlotReport, error)
	// Pull fetches the image that jobs run once more, and says which it is.
	Pull(ctx context.Context) (digest string, err error)
	// Evaluate runs an evaluation in each slot, or in all at once.
	Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error)
	// Idle is a slot that serves and has nothing to do; false where there is none.
	Idle(ctx context.Context) (slot int, ok bool, err error)
	// Agent looks at a slot's agent, and Kill ends it as a fault would.
	Agent(ctx context.Context, slot int) (Agent, error)
	Kill(ctx context.Context, slot int) error
}

// run is one way through the list.
type run struct {
	Node
	fit         *doctor.Report // nil while it could not be had
	evaluations []image.Evaluation
	// seconds that agents have to be back, and to register; tests shorten them.
	back, register, poll time.Duration
}

// item is one that is still to be tried.
type item struct {
	id, about string
	try       func(context.Context, *run) Item
}

// Run goes through the list. It returns early only when ctx ends.
func Run(ctx context.Context, node Node, progress func(text string)) (*Report, error) {
	return walk(ctx, &run{Node: node, back: backTime, register: agent.RegisterTime, poll: pollTime}, progress)
}

func walk(ctx context.Context, r *run, progress func(text string)) (*Report, error) {
	report := &Report{Schema: Schema, Time: time.Now().UTC().Truncate(time.Second)}
	for n, it := range items {
		progress(fmt.Sprintf("%d of %d: %s", n+1, len(items), it.about))
		began := time.Now()
		done := it.try(ctx, r)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		done.ID, done.About, done.Seconds = it.id, it.about, time.Since(began).Round(time.Millisecond).Seconds()
		report.Items = append(report.Items, done)
	}
	report.Accepted = !slices.ContainsFunc(report.Items, func(i Item) bool { return i.Verdict == Failed || i.Verdict == Untried })
	return report, nil
}

func passed(format string, args ...any) Item {
	return Item{Verdict: Passed, Saw: fmt.Sprintf(format, args...)}
}

func failed(do, format string, args ...any) Item {
	return Item{Verdict: Failed, Saw: fmt.Sprintf(format, args...), Do: do}
}

func untried(do, format string, args ...any) Item {
	return Item{Verdict: Untried, Saw: fmt.Sprintf(format, args...), Do: do}
}

func byHand(do, format string, args ...any) Item {
	return Item{Verdict: ByHand, Saw: fmt.Sprintf(format, args...), Do: do}
}
