package submit

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Overhead is the time that a job needs besides its programs: a first pull of the image, and the upload of
// its artifacts.
const Overhead = 10 * time.Minute

// maxRunTime is the longest time limit that a pipeline's step may have.
const maxRunTime = 7 * 24 * time.Hour

// JobTime returns how long a job may take whose programs may take that long, a week at most.
func JobTime(programs time.Duration) time.Duration {
	return min(programs, maxRunTime-Overhead) + Overhead
}

// Limits are what others allow a job; 0 if that is not known, or there is no limit.
type Limits struct {
	Step time.Duration // of the pipeline's own steps
	Node time.Duration // job.time_limit of the nodes
}

// ReadLimits asks for the limits of builds in t. tags are those of an agent that may run them.
func ReadLimits(ctx context.Context, c *buildkite.Client, t Target, tags []string) Limits {
	var l Limits
	if d, err := time.ParseDuration(buildkite.Tag(tags, "time-limit")); err == nil {
		l.Node = max(d, 0)
	}
	if !t.Inline {
		// Without the scope read_pipelines the limit is not known. What else is wrong, the build's creation tells.
		steps, _ := c.Steps(ctx, t.Org, t.Pipeline)
		l.Step = time.Duration(pipeline.StepMinutes(steps)) * time.Minute
	}
	return l
}

// Short returns which limits end a job that takes all of need, and what to do about each.
func (t Target) Short(need time.Duration, l Limits) (all []string) {
	say := func(limit time.Duration, format string, args ...any) {
		if limit > 0 && limit < need {
			all = append(all, fmt.Sprintf("the evaluation may take %d minutes, and ", minutes(need))+fmt.Sprintf(format, args...))
		}
	}
	say(t.RunTime, "--timeout cancels it after %d; write --timeout %dm, or leave it out", minutes(t.RunTime), minutes(need))
	say(l.Step, "the step of pipeline %s ends it after %d; set timeout_in_minutes to %d there, or add --inline-steps", text.Line(t.Pipeline, 100), minutes(l.Step), minutes(need))
	say(l.Node, "job.time_limit of the node ends it after %d; write %dm there", minutes(l.Node), minutes(need))
	return all
}

// minutes returns whole minutes, as Buildkite has them.
func minutes(d time.Duration) int { return int((d + time.Minute - 1) / time.Minute) }
