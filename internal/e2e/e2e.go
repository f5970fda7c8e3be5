// Package e2e proves a queue of nodes from end to end, from wherever there is a token
// of Buildkite's API: an artifact comes back, submissions are judged as they should be,
// and jobs that run at the same time have an agent and a GPU each.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/results"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/text"
)

// Parts of the proof, in the order in which they are run.
const (
	Artifact    = "artifact"    // a file of a job comes back; needs no GPU
	Evaluation  = "evaluation"  // right submissions pass, wrong and cheating ones do not
	Concurrency = "concurrency" // jobs at the same time have an agent and a GPU each
	Database    = "database"    // the right submission goes into kernelbot's database
)

// Parts are those that can be asked for.
var Parts = []string{Artifact, Evaluation, Concurrency}

// Modes are those in which submissions are evaluated here.
var Modes = []string{"test", "benchmark", "leaderboard"}

// NewRunID is one that nobody has.
func NewRunID() string { return strings.Replace(submit.NewRunID(), "kbnode-", "kbnode-e2e-", 1) }

// MaxJobs bounds Options.Jobs.
const MaxJobs = 1000

// Verdict is what came of a check.
type Verdict string

// Verdicts of checks.
const (
	OK      Verdict = "ok"
	Failed  Verdict = "failed"
	Untried Verdict = "not tried" // and so the queue is not proven
)

// Check is one thing that was looked at, in most cases one build.
type Check struct {
	Part    string  `json:"part"`
	Name    string  `json:"name"` // unique in its part
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"` // may quote what a job reports: escape it for a terminal
	RunID   string  `json:"run_id,omitempty"`
	Build   int     `json:"build,omitempty"`
	URL     string  `json:"url,omitempty"`
	Agent   string  `json:"agent,omitempty"`
	Queue   float64 `json:"queue_seconds,omitempty"` // that it waited for an agent
	Run     float64 `json:"run_seconds,omitempty"`   // that it ran
	Profile string  `json:"profile,omitempty"`       // job profile of an evaluation, as its node.json says
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is what came of everything.
type Report struct {
	Schema int             `json:"schema"`
	Time   time.Time       `json:"time"` // of its beginning
	RunID  string          `json:"run_id"`
	Queue  string          `json:"queue"`
	OK     bool            `json:"ok"` // every check is
	Checks []Check         `json:"checks"`
	Stored *results.Stored `json:"stored,omitempty"` // what is left in the database
}

// Options say what is tried, and where.
type Options struct {
	RunID         string // the beginning of each job's own, and the leaderboard's name
	Org, Pipeline string
	Queue, Branch string
	Image         string         // "" is the pipeline's own
	Inline        bool           // evaluations bring their steps along
	GPU           string         // its type's name, for the database
	Arch          string         // for nvcc; "" is none
	AMD           bool           // the GPUs are AMD's
	Profile       string         // that inline steps ask for; "" is strict
	Parts         []string       // those to run
	Problem       *Problem       // of the evaluations
	Mode          string         // one of Modes
	Jobs          int            // at once; 0 is one for each agent that takes jobs
	Hold          time.Duration  // how long these run at least; 0 is by their number
	QueueTime     time.Duration  // that a build may wait for an agent
	RunTime       time.Duration  // that one may run; 0 is by what it does
	Store         *results.Store // nil is none
	Cleanup       bool           // what is stored is removed again
	On            func(part, name string, s submit.Status)
	Log           func(why string)
}

// trial is a build and what it should come to.
type trial struct {
	name  string
	job   submit.Job
	judge func(submit.Outcome) (saw string, ok bool)
}

// Run tries everything. It always comes to its end: what goes wrong is in the report.
// When ctx ends, builds are cancelled, and the rest is not tried.
func Run(ctx context.Context, c *buildkite.Client, o Options) *Report {
	r := &Report{Schema: Schema, Time: time.Now().UTC().Truncate(time.Second), RunID: o.RunID, Queue: o.Queue}
	for _, part := range Parts {
		switch {
		case !slices.Contains(o.Parts, part):
		case ctx.Err() != nil:
			r.add(Check{Part: part, Name: "all", Verdict: Untried, Saw: "interrupted"})
		case part == Concurrency:
			r.concurrency(ctx, c, o)
		default:
			r.builds(ctx, c, o, part)
		}
	}
	r.OK = len(r.Checks) > 0 && !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict != OK })
	return r
}

func (r *Report) add(c Check) { r.Checks = append(r.Checks, c) }

// builds runs a part that is its builds, and no more.
func (r *Report) builds(ctx context.Context, c *buildkite.Client, o Options, part string) {
	trials, err := o.trials(part, 0)
	if err != nil {
		r.add(Check{Part: part, Name: "all", Verdict: Failed, Saw: err.Error()})
		return
	}
	outcomes := r.run(ctx, c, o, part, trials)
	if part == Evaluation && o.Store != nil {
		r.store(ctx, o, outcomes[0]) // of the right one
	}
}

// concurrency runs as many jobs as there are agents, and looks at when each ran where.
func (r *Report) concurrency(ctx context.Context, c *buildkite.Client, o Options) {
	together := Check{Part: Concurrency, Name: "side by side", Verdict: Failed}
	serving, free, err := agents(ctx, c, o.Org, o.Queue)
	n := o.Jobs
	switch {
	case n > 0 && err != nil:
		free = 1 // at least
	case err != nil:
		together.Saw = fmt.Sprintf("how many agents there are is not known; say how many jobs with --jobs N: %v", err)
	case n == 0 && serving == 0:
		together.Saw = fmt.Sprintf("no agent in queue %s takes jobs; they are paused or stopping", o.Queue)
	case n == 0:
		n = min(serving, MaxJobs)
	}
	if n == 0 {
		r.add(together)
		return
	}
	width := min(n, max(free, 1))
	if o.Hold == 0 {
		o.Hold = holdFor(width)
	}
	trials, err := o.trials(Concurrency, n)
	if err != nil {
		together.Saw = err.Error()
		r.add(together)
		return
	}
	outcomes := r.run(ctx, c, o, Concurrency, trials)
	var ok bool
	if together.Saw, ok = sideBySide(outcomes, width); ok {
		together.Verdict = OK
	}
	r.add(together)
}

// agents counts those of a queue that take jobs, and those of them that have none.
func agents(ctx context.Context, c *buildkite.Client, org, queue string) (serving, free int, err error) {
	all, err := c.Agents(ctx, org)
	for _, a := range all {
		if !slices.Contains(a.Queues(), queue) || a.Paused || a.Stopping {
			continue
		}
		serving++
		if a.Job == nil {
			free++
		}
	}
	return serving, free, err
}

// run runs trials side by side, and adds a check for each.
func (r *Report) run(ctx context.Context, c *buildkite.Client, o Options, part string, trials []trial) []submit.Outcome {
	jobs := make([]submit.Job, len(trials))
	for i, t := range trials {
		jobs[i] = t.job
	}
	follow := submit.Options{Org: o.Org, Pipeline: o.Pipeline, QueueTime: o.QueueTime, RunTime: o.runTime(part), Node: part == Evaluation}
	if o.On != nil {
		follow.On = func(i int, s submit.Status) { o.On(part, trials[i].name, s) }
	}
	if o.Log != nil {
		follow.Log = func(_ int, why string) { o.Log(why) }
	}
	outcomes := submit.Run(ctx, c, follow, jobs)
	refused := ""
	for i, out := range outcomes {
		if out.Verdict == submit.NotCreated && out.Err != nil {
			if refused == "" { // for all the same reason
				refused = c.Explain(ctx, out.Err, o.Org, o.Pipeline).Error()
			}
			outcomes[i].Reason, out.Reason = refused, refused
		}
		check := Check{
			Part: part, Name: trials[i].name, Verdict: Failed, RunID: out.RunID, Build: out.Build, URL: out.URL,
			Agent: out.Agent, Queue: out.Queue, Run: out.Run,
		}
		var ok bool
		check.Saw, ok = trials[i].judge(out)
		var node noise.Record
		if json.Unmarshal(out.Node, &node) == nil && node.Profile != "" {
			check.Profile = text.Line(node.Profile, 60)
			check.Saw += "; profile " + check.Profile
		}
		switch {
		case ok:
			check.Verdict = OK
		case out.Verdict == submit.Cancelled && ctx.Err() != nil:
			check.Verdict = Untried
		}
		r.add(check)
	}
	return outcomes
}
