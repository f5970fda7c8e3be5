// Package acceptance runs the checks that a vendor shows the operators before a node goes
// live. It tries each item on the node itself. What cannot be tried from there is also on
// the list, to do by hand.
package acceptance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Verdict is the outcome of an item.
type Verdict string

// The verdicts.
const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Untried Verdict = "not tried" // so the node is not accepted
	ByHand  Verdict = "by hand"   // it cannot be tried from the node
)

// Item is one line of the list.
type Item struct {
	ID      string  `json:"id"` // stable; documented in docs/install.md
	About   string  `json:"about"`
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"`
	Do      string  `json:"do,omitempty"` // what to type or do if it did not pass
	Seconds float64 `json:"seconds"`
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is the completed list, and what it is about; docs/install.md describes its JSON.
type Report struct {
	Node     string    `json:"node"`
	Kbnode   string    `json:"kbnode"` // its version
	Queues   []string  `json:"queues"`
	GPUs     []string  `json:"gpus"` // "gpu0: NVIDIA B200, GPU-…"
	Image    string    `json:"image"`
	Schema   int       `json:"schema"`
	Time     time.Time `json:"time"`     // when the run began
	Accepted bool      `json:"accepted"` // nothing failed, and everything that can be tried was
	Items    []Item    `json:"items"`
}

// Count returns how many items have a verdict.
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
	PID        int  // 0 if none runs
	Registered bool // with Buildkite, since it was started
}

// Node is the node to accept.
type Node interface {
	Doctor(ctx context.Context) (*doctor.Report, error)
	// Selftest returns a report for the node itself and one for each slot.
	Selftest(ctx context.Context) ([]selftest.SlotReport, error)
	// Pull pulls the jobs' image again, and returns its digest.
	Pull(ctx context.Context) (digest string, err error)
	// Evaluate runs an evaluation in each slot, one after another or all at once.
	Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error)
	// Idle returns a slot that serves and has no job, and false if there is none.
	Idle(ctx context.Context) (slot int, ok bool, err error)
	// Agent returns the state of a slot's agent, and Kill ends it as a fault would.
	Agent(ctx context.Context, slot int) (Agent, error)
	Kill(ctx context.Context, slot int) error
}

// run is one run through the list.
type run struct {
	Node
	fit         *doctor.Report // nil until doctor has run
	evaluations []image.Evaluation
	// Time limits for agents to be back and to register; tests shorten them.
	back, register, poll time.Duration
}

// item is an item to try.
type item struct {
	id, about string
	try       func(context.Context, *run) Item
}

// Run tries all items. It returns early only when ctx ends.
func Run(ctx context.Context, node Node, progress func(text string)) (*Report, error) {
	return walk(ctx, &run{Node: node, back: backTime, register: slot.RegisterTime, poll: pollTime}, progress)
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

// restart kills the agent of an idle slot, and waits for the next one.
func restart(ctx context.Context, r *run) Item {
	slot, ok, err := r.Idle(ctx)
	if err != nil {
		return failed("sudo kbnode status", "%v", err)
	}
	if !ok {
		return untried(typeAgain, "no slot is idle")
	}
	name, unit := plan.SlotName(slot), plan.AgentUnit(slot)
	logs := "journalctl -u " + unit
	before, err := r.Agent(ctx, slot)
	if err == nil && before.PID == 0 {
		err = fmt.Errorf("no agent runs in %s", name)
	}
	if err == nil {
		err = r.Kill(ctx, slot)
	}
	if err != nil {
		return failed(logs, "%v", err)
	}
	began := time.Now()
	back := time.Duration(0)
	for {
		now, err := r.Agent(ctx, slot)
		since := time.Since(began)
		// systemd may still report the killed agent.
		if err == nil && now.PID != 0 && now.PID != before.PID {
			if back == 0 {
				back = since
			}
			if now.Registered {
				break
			}
		}
		switch {
		case back == 0 && since > r.back:
			if err != nil {
				return failed(logs, "%s: %v", name, err)
			}
			return failed(logs, "the agent of %s is not back after %s", name, r.back)
		case since > r.register:
			return failed(logs, "the agent of %s was back after %.1f s, but has not registered", name, back.Seconds())
		}
		if limit.Sleep(ctx, r.poll) != nil {
			return Item{}
		}
	}
	if back > r.back {
		return failed(logs, "the agent of %s was back after %.1f s", name, back.Seconds())
	}
	return passed("%s: back after %.1f s, registered after %.1f s", name, back.Seconds(), time.Since(began).Seconds())
}
