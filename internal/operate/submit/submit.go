// Package submit creates Buildkite builds, each with one request, follows them until they end, and fetches
// their results. It never leaves a build of its own running without saying so.
package submit

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Verdict is how a job came out.
type Verdict string

// Verdicts. Every verdict except Passed is a failure.
const (
	Passed     Verdict = "passed"
	NotPassed  Verdict = "not passed"
	NoResult   Verdict = "no result"
	TimedOut   Verdict = "timed out"
	Cancelled  Verdict = "cancelled"
	NotCreated Verdict = "not created"
	Unknown    Verdict = "unknown" // Buildkite did not answer its creation, or nothing for too long
)

// Job is a build to create.
type Job struct {
	RunID string // stored in the build's meta-data; unique to the build
	Build buildkite.NewBuild
	// Runs are the evaluations that the result must contain.
	Runs []string
	// Compare is what a job with two submissions compares; nil for one.
	Compare *Comparison
}

// NewRunID returns a unique run ID.
func NewRunID() string { return "kbnode-" + strings.ToLower(rand.Text()[:16]) }

// Options say where to create builds and how to follow them.
type Options struct {
	Target
	// Node also fetches node.json, without which a comparison has no verdict.
	Node bool
	// On, if not nil, is called with each change of the job with this index.
	On func(index int, s Status)
	// Log, if not nil, is called with errors that are retried.
	Log func(why string)
}

// Status is the current status of a job.
type Status struct {
	RunID string // "" for a build that another command created
	Build int    // build number; 0 if not created yet
	URL   string // of the build's page
	State string // creating, waiting, running, canceling, fetching, or the verdict
	Agent string
	Since time.Time // when the state began
}

// Outcome is how a job ended.
type Outcome struct {
	RunID   string         `json:"run_id"`
	Build   int            `json:"build,omitempty"`
	URL     string         `json:"url,omitempty"`
	State   string         `json:"state,omitempty"` // Buildkite's state of the build
	Verdict Verdict        `json:"verdict"`
	Reason  string         `json:"reason"`
	Agent   string         `json:"agent,omitempty"`
	Tags    []string       `json:"tags,omitempty"`        // of the agent
	Exit    *int           `json:"exit_status,omitempty"` // of the job
	Started time.Time      `json:"-"`                     // by the agent's clock; zero if not known
	Ended   time.Time      `json:"-"`                     // by the agent's clock; zero if not known
	Queue   float64        `json:"queue_seconds"`         // from runnable to started
	Run     float64        `json:"run_seconds"`           // from started to ended
	Raw     []byte         `json:"-"`                     // result.json as fetched
	Node    []byte         `json:"-"`                     // node.json, if there is one
	NodeErr error          `json:"-"`                     // why node.json cannot be read
	Result  *result.Result `json:"result,omitempty"`
	// Comparison is what Result says of two submissions, if they were compared.
	Comparison *compare.Report `json:"comparison,omitempty"`
	// Cached is since when this has been the answer to identical submissions; absent if the submission was evaluated now.
	Cached time.Time `json:"cached,omitzero"`
}

// MayRun reports whether the build may still run, or may have been created and not be known.
func (o *Outcome) MayRun() bool {
	return o.Cached.IsZero() && (o.Verdict == Unknown || o.Build != 0 && !buildkite.Build{State: o.State}.Ended())
}

// runsKey is the key of a build's meta-data with Job.Runs.
const runsKey = "runs"

// Follow follows a build that another command created, with this run ID, or a rebuild of it. It cancels nothing: when ctx
// ends, the build runs on.
func Follow(ctx context.Context, c *buildkite.Client, o Options, runID string) (Outcome, error) {
	builds, err := FindRun(ctx, c, o.Target, runID)
	if err != nil {
		return Outcome{}, err
	}
	o.QueueTime, o.RunTime = 0, 0
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	f := newFollower(work, c, o)
	f.key, f.value, f.others = buildkite.RunIDKey, runID, true
	job := Job{RunID: runID, Runs: strings.Fields(builds[0].MetaData[runsKey]), Compare: comparisonOf(builds[0].MetaData[compareKey])}
	f.runs = []*run{{job: job, out: Outcome{RunID: runID}, build: builds[0]}}
	f.follow(ctx, stop)
	return f.runs[0].out, nil
}

// FindRun returns the builds with a run ID, the latest first, or an error if there is none.
func FindRun(ctx context.Context, c *buildkite.Client, t Target, runID string) ([]buildkite.Build, error) {
	builds, err := c.Find(ctx, t.Org, t.Pipeline, buildkite.RunIDKey, runID)
	builds = slices.DeleteFunc(builds, func(b buildkite.Build) bool { return b.MetaData[buildkite.RunIDKey] != runID })
	if err == nil && len(builds) == 0 {
		err = fmt.Errorf("no build of %s/%s has the run ID %s; --pipeline names another pipeline", t.Org, t.Pipeline, text.Line(runID, 100))
	}
	return builds, err
}

func newFollower(work context.Context, c *buildkite.Client, o Options) *follower {
	return &follower{
		Options: o, client: c, work: work, events: make(chan func()),
		busy: make(chan struct{}, atOnce), began: time.Now(), answered: time.Now(),
	}
}

// Run runs jobs concurrently until they end. When ctx ends, it cancels their builds and waits
// for them. It returns one outcome for each job, in order.
func Run(ctx context.Context, c *buildkite.Client, o Options, jobs []Job) []Outcome {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	f := newFollower(work, c, o)
	f.key, f.value = batchKey, NewRunID()
	for i, j := range jobs {
		meta := map[string]string{buildkite.RunIDKey: j.RunID, batchKey: f.value}
		if len(j.Runs) > 0 { // Buildkite's own agent takes no empty value
			meta[runsKey] = strings.Join(j.Runs, " ")
		}
		if j.Compare != nil {
			meta[compareKey] = j.Compare.String()
		}
		maps.Copy(meta, j.Build.MetaData)
		j.Build.MetaData = meta
		f.runs = append(f.runs, &run{index: i, job: j, out: Outcome{RunID: j.RunID}})
	}
	f.follow(ctx, stop)
	out := make([]Outcome, len(f.runs))
	for i, r := range f.runs {
		out[i] = r.out
	}
	return out
}
