// Package submit creates builds in Buildkite, follows them to their end, and fetches
// their results. However it ends, no build of its own is left running unless it says so.
package submit

import (
	"context"
	"crypto/rand"
	"maps"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/runner"
)

// Verdict is how a job came out.
type Verdict string

// The verdicts. All but Passed are a no.
const (
	Passed      Verdict = "passed"
	NotPassed   Verdict = "not passed"
	NoResult    Verdict = "no result"
	TimedOut    Verdict = "timed out"
	Cancelled   Verdict = "cancelled"
	NotCreated  Verdict = "not created"
	LeftRunning Verdict = "left running"
	Unknown     Verdict = "unknown" // Buildkite did not answer any more
)

// Job is one build to be.
type Job struct {
	RunID    string // in the build's meta-data; no two builds have the same
	Build    buildkite.NewBuild
	NoResult bool // it leaves no result.json
	// Runs are the evaluations that its result must have.
	Runs []string
}

// NewRunID is one that nobody has.
func NewRunID() string { return "kbnode-" + strings.ToLower(rand.Text()[:16]) }

// Options say where builds are made, and for how long they are waited for.
type Options struct {
	Org, Pipeline string
	// QueueTime is how long a build may wait for an agent, RunTime how long it may
	// run; then it is cancelled. Zero is without end.
	QueueTime, RunTime time.Duration
	// Resume follows a build that has the job's run id already. It is for one job.
	Resume bool
	// Node fetches node.json, too.
	Node bool
	// On is told of each change, of the job with this index; nil is not.
	On func(index int, s Status)
	// Leave is asked when ctx ends whether builds are left running; nil cancels them.
	// They are followed meanwhile.
	Leave func() bool
	// Log is told what went wrong and is tried again.
	Log func(index int, why string)
}

// Status is where a job stands.
type Status struct {
	Build int    // its number; 0 is not yet created
	URL   string // of its page
	State string // creating, waiting, running, cancelling, fetching, or the verdict
	Agent string
	Since time.Time // of the state
}

// Outcome is how a job ended.
type Outcome struct {
	RunID   string         `json:"run_id"`
	Build   int            `json:"build,omitempty"`
	URL     string         `json:"url,omitempty"`
	State   string         `json:"state,omitempty"` // Buildkite's of the build
	Verdict Verdict        `json:"verdict"`
	Reason  string         `json:"reason"`
	Agent   string         `json:"agent,omitempty"`
	Tags    []string       `json:"tags,omitempty"`        // of the agent
	Exit    *int           `json:"exit_status,omitempty"` // of the job
	Waited  time.Duration  `json:"-"`                     // from when it could run until it did
	Ran     time.Duration  `json:"-"`                     // until its end
	Started time.Time      `json:"-"`                     // by the agent's clock; zero is not known
	Ended   time.Time      `json:"-"`                     // likewise
	Queue   float64        `json:"queue_seconds"`         // Waited
	Run     float64        `json:"run_seconds"`           // Ran
	Raw     []byte         `json:"-"`                     // result.json as it came
	Node    []byte         `json:"-"`                     // node.json, where there is one
	Err     error          `json:"-"`                     // of a build that was not created
	Result  *runner.Result `json:"result,omitempty"`
}

// Run runs jobs to their end, side by side. When ctx ends, builds are cancelled and
// waited for. There is an outcome for each job, in order.
func Run(ctx context.Context, c *buildkite.Client, o Options, jobs []Job) []Outcome {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	o.Resume = o.Resume && len(jobs) == 1
	f := &follower{
		Options: o, client: c, work: work, batch: NewRunID(), events: make(chan func()),
		toCreate: make(chan struct{}, creators), toFetch: make(chan struct{}, fetchers), began: time.Now(), heard: time.Now(),
	}
	for i, j := range jobs {
		meta := map[string]string{buildkite.RunIDKey: j.RunID, batchKey: f.batch}
		maps.Copy(meta, j.Build.MetaData)
		j.Build.MetaData = meta
		f.runs = append(f.runs, &run{index: i, job: j, out: Outcome{RunID: j.RunID}})
	}
	f.follow(ctx, stop)
	out := make([]Outcome, len(f.runs))
	for i, r := range f.runs {
		r.out.Reason += r.also
		r.out.Queue, r.out.Run = r.out.Waited.Seconds(), r.out.Ran.Seconds()
		out[i] = r.out
	}
	return out
}
