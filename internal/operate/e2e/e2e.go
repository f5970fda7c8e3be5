// Package e2e tests a queue of nodes end to end, from any machine with a Buildkite API token: an
// artifact comes back, submissions are judged correctly, and concurrent jobs each have their own
// agent and GPU.
package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/results"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Parts of the test, in the order in which they run.
const (
	Artifact    = "artifact"    // a file of a job comes back; needs no GPU
	Evaluation  = "evaluation"  // right submissions pass, wrong and cheating ones do not
	Concurrency = "concurrency" // concurrent jobs each have their own agent and GPU
	Database    = "database"    // the right submission is stored in kernelbot's database
)

// Parts lists the parts that a caller can request.
var Parts = []string{Artifact, Evaluation, Concurrency}

// Modes lists the modes in which e2e evaluates submissions.
var Modes = []string{"test", "benchmark", "leaderboard"}

// NewRunID returns a unique run ID.
func NewRunID() string { return strings.Replace(submit.NewRunID(), "kbnode-", "kbnode-e2e-", 1) }

// MaxJobs bounds Options.Jobs.
const MaxJobs = 1000

// Verdict is the result of a check.
type Verdict string

// Verdicts of checks.
const (
	OK      Verdict = "ok"
	Failed  Verdict = "failed"
	Untried Verdict = "not tried" // so the queue is not proven
)

// Check is one thing that was tested, in most cases one build.
type Check struct {
	Part    string  `json:"part"`
	Name    string  `json:"name"` // unique in its part
	Verdict Verdict `json:"verdict"`
	Saw     string  `json:"saw"` // may quote what a job reports: escape it for a terminal
	RunID   string  `json:"run_id,omitempty"`
	Build   int     `json:"build,omitempty"`
	URL     string  `json:"url,omitempty"`
	Agent   string  `json:"agent,omitempty"`
	Queue   float64 `json:"queue_seconds,omitempty"` // waiting for an agent
	Run     float64 `json:"run_seconds,omitempty"`   // running
	Profile string  `json:"profile,omitempty"`       // evaluation's job profile, from node.json

	Implausible []witness.Finding `json:"implausible,omitempty"` // likewise, why not to believe its times
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Report is the result of all checks.
type Report struct {
	Schema int             `json:"schema"`
	Time   time.Time       `json:"time"` // when the run began
	RunID  string          `json:"run_id"`
	Queue  string          `json:"queue"`
	OK     bool            `json:"ok"` // every check is OK
	Checks []Check         `json:"checks"`
	Stored *results.Stored `json:"stored,omitempty"` // what remains in the database
}

// Options say what to test, and where.
type Options struct {
	submit.Target                // a RunTime of 0 depends on the part
	RunID         string         // prefix of each job's run ID, and the leaderboard's name
	Parts         []string       // those to run
	Problem       *Problem       // of the evaluations
	Mode          string         // one of Modes
	EvalTime      time.Duration  // RunTime of an evaluation
	Jobs          int            // concurrent jobs; 0 means one for each agent that takes jobs
	Hold          time.Duration  // minimum run time of these; 0 depends on their number
	Store         *results.Store // nil means none
	Cleanup       bool           // remove what was stored
	On            func(part, name string, s submit.Status)
	Log           func(why string)
}

type trial struct {
	name  string
	job   submit.Job
	judge func(submit.Outcome) (saw string, ok bool)
}

// Run runs the parts in o. It always completes: errors are in the report. When ctx ends, it
// cancels its builds and does not try the rest.
func Run(ctx context.Context, c *buildkite.Client, o Options) *Report {
	r := &Report{Schema: Schema, Time: time.Now().UTC().Truncate(time.Second), RunID: o.RunID, Queue: o.Queue}
	first := 0 // agents before any job: after one, an agent is away for seconds, and is not counted
	if o.Jobs == 0 && slices.Contains(o.Parts, Concurrency) && len(o.Parts) > 1 {
		first, _, _ = agents(ctx, c, o.Org, o.Queue) // an error comes again, and is reported then
	}
	for _, part := range Parts {
		switch {
		case !slices.Contains(o.Parts, part):
		case ctx.Err() != nil:
			r.add(Check{Part: part, Name: "all", Verdict: Untried, Saw: "interrupted"})
		case part == Concurrency:
			r.concurrency(ctx, c, o, first)
		default:
			r.builds(ctx, c, o, part)
		}
	}
	r.OK = len(r.Checks) > 0 && !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict != OK })
	return r
}

func (r *Report) add(c Check) { r.Checks = append(r.Checks, c) }

func (r *Report) builds(ctx context.Context, c *buildkite.Client, o Options, part string) {
	trials, err := o.trials(part, 0)
	if err != nil {
		r.add(Check{Part: part, Name: "all", Verdict: Failed, Saw: err.Error()})
		return
	}
	outcomes := r.run(ctx, c, o, part, trials)
	if part == Evaluation && o.Store != nil {
		r.store(ctx, o, outcomes[0]) // of the right submission
	}
}

// concurrency runs as many jobs as there are agents, of which there were at least first, and checks when and
// where each ran.
func (r *Report) concurrency(ctx context.Context, c *buildkite.Client, o Options, first int) {
	together := Check{Part: Concurrency, Name: "side by side", Verdict: Failed}
	defer func() { r.add(together) }()
	serving, free, err := agents(ctx, c, o.Org, o.Queue)
	n := o.Jobs
	switch {
	case n > 0 && err != nil:
		free = 1 // at least
	case err != nil:
		together.Saw = fmt.Sprintf("cannot count the agents; give the number of jobs with --jobs N: %v", err)
	case n == 0 && serving == 0:
		together.Saw = fmt.Sprintf("no agent in queue %s takes jobs; they are paused or stopping", o.Queue)
	case n == 0:
		n = min(max(serving, first), MaxJobs)
	}
	if n == 0 {
		return
	}
	width := min(n, max(free, 1))
	o.Hold = cmp.Or(o.Hold, holdFor(width))
	trials, err := o.trials(Concurrency, n)
	if err != nil {
		together.Saw = err.Error()
		return
	}
	var ok bool
	together.Saw, ok = sideBySide(r.run(ctx, c, o, Concurrency, trials), width)
	if ok {
		together.Verdict = OK
	}
}

// agents counts the agents of a queue that take jobs, and those of them without a job.
func agents(ctx context.Context, c *buildkite.Client, org, queue string) (serving, free int, err error) {
	all, err := c.Agents(ctx, org)
	for _, q := range buildkite.Queues(all, nil, time.Now()) {
		if q.Name == queue {
			return q.Count(buildkite.Idle, buildkite.Busy), q.Count(buildkite.Idle), err
		}
	}
	return 0, 0, err
}

func (r *Report) run(ctx context.Context, c *buildkite.Client, o Options, part string, trials []trial) []submit.Outcome {
	follow := submit.Options{Target: o.target(part), Node: part == Evaluation, Log: o.Log}
	if o.On != nil {
		follow.On = func(i int, s submit.Status) { o.On(part, trials[i].name, s) }
	}
	outcomes := submit.Run(ctx, c, follow, jobsOf(trials))
	for i, out := range outcomes {
		check := Check{
			Part: part, Name: trials[i].name, Verdict: Failed, RunID: out.RunID, Build: out.Build, URL: out.URL,
			Agent: out.Agent, Queue: out.Queue, Run: out.Run,
		}
		var ok bool
		check.Saw, ok = trials[i].judge(out)
		var node noise.Record
		if json.Unmarshal(out.Node, &node) == nil {
			check.Implausible = witness.Clean(node.Implausible)
			check.Profile = text.Line(node.Profile, 60)
			if check.Profile != "" {
				check.Saw += "; profile " + check.Profile
			}
		}
		if out.NodeErr != nil {
			check.Saw += fmt.Sprintf("; profile unknown: %v", out.NodeErr)
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
