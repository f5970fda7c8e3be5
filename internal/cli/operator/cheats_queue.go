package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// onQueue has o evaluate on a queue, a build for each trial. With --dry-run it prints the honest submission's, and
// leaves o without Evaluate. The context also ends when the terminal closes.
func (f *cheatFlags) onQueue(ctx context.Context, s term.Streams, o *arena.Options) (context.Context, context.CancelFunc, error) {
	err := f.resolve()
	if err == nil {
		err = f.UseProblem(o.Task)
	}
	if err != nil {
		return nil, nil, term.Usage(err)
	}
	o.Arch, o.OnQueue, o.Limit = f.Arch, true, 0
	doc, err := o.Task.Config(o.Honest, o.Arch, arena.Mode)
	if err != nil {
		return nil, nil, term.Usage(err)
	}
	need := jobTime(doc)
	if f.RunTime == 0 {
		f.RunTime = need
	}
	run := e2e.NewRunID()
	if f.dryRun {
		s.Progress("one of these for the honest submission, and one for each of %s", text.Count(len(o.Corpus.Attacks), "attack"))
		j, err := f.build(run, arena.Trial{Name: "honest", Payload: doc})
		if err != nil {
			return nil, nil, term.Usage(err)
		}
		f.warnShort(s, need, submit.Limits{})
		all := f.requests(j)
		return nil, nil, requestsDoc.Print(s, f.asJSON, requestList{all}, func() { printRequests(s.Out, all) })
	}
	client, err := f.api.Client(s, nil)
	if err != nil {
		return nil, nil, err
	}
	f.Org = f.api.Org
	ctx, stop := untilHangup(ctx)
	if err := f.check(ctx, s, client, need); err != nil {
		stop()
		return nil, nil, err
	}
	o.Evaluate = func(ctx context.Context, trials []arena.Trial, done func(int, arena.Evaluation)) {
		f.evaluate(ctx, s, client, run, trials, done)
	}
	return ctx, stop, nil
}

func (f *cheatFlags) build(run string, t arena.Trial) (submit.Job, error) {
	return submit.Request{Target: f.Target, RunID: run + "-" + t.Name, Payload: t.Payload, Message: "kbnode e2e cheats: " + t.Name}.Job()
}

// evaluate runs all trials at once, as many as the queue's agents take.
func (f *cheatFlags) evaluate(ctx context.Context, s term.Streams, client *buildkite.Client, run string, trials []arena.Trial, done func(int, arena.Evaluation)) {
	var jobs []submit.Job
	var places []int // of the jobs among the trials
	for i, t := range trials {
		j, err := f.build(run, t)
		if err != nil {
			done(i, arena.Evaluation{Err: err})
			continue
		}
		jobs, places = append(jobs, j), append(places, i)
	}
	show := e2eProgress(s)
	outcomes := submit.Run(ctx, client, submit.Options{
		Target: f.Target,
		On:     func(i int, st submit.Status) { show("cheats", trials[places[i]].Name, st) },
		Log:    func(why string) { s.Progress("%s", text.Line(why, 300)) },
	}, jobs)
	for i, out := range outcomes {
		e := arena.Evaluation{Result: out.Result, TimedOut: out.Verdict == submit.TimedOut}
		if out.Result == nil && !e.TimedOut {
			e.Err = fmt.Errorf("no result: %w", errors.New(out.Reason))
		}
		done(places[i], e)
	}
}
