package submit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const maxNodeFile = 1 << 20

// fetch gets what an ended build left, even if it failed: a submission that does not compile
// fails, and the compiler's messages are in the result.
func (f *follower) fetch(r *run) {
	r.fetching = true
	job := scriptOf(r.build)
	if job != nil {
		r.out.Exit = job.ExitStatus
		r.out.Started, r.out.Ended = job.Started, job.Finished
		r.out.Queue, r.out.Run = seconds(job.Runnable, job.Started), seconds(job.Started, job.Finished)
	}
	f.report(r, "fetching")
	build := r.build
	f.async(func() func() {
		f.busy <- struct{}{}
		defer func() { <-f.busy }()
		result, node, nodeErr, err := f.files(f.work, build)
		return func() {
			r.out.Node, r.out.NodeErr = node, nodeErr
			f.conclude(r, job, result, err)
		}
	})
}

func seconds(from, to time.Time) float64 {
	if from.IsZero() || to.Before(from) {
		return 0
	}
	return to.Sub(from).Seconds()
}

// scriptOf returns the job that decides a build: the first that did not pass, or else the last.
// It returns nil if there is none.
func scriptOf(b buildkite.Build) *buildkite.Job {
	scripts := b.Scripts()
	if len(scripts) == 0 {
		return nil
	}
	i := slices.IndexFunc(scripts, func(j buildkite.Job) bool { return j.State != "passed" })
	if i < 0 {
		i = len(scripts) - 1
	}
	return &scripts[i]
}

// files fetches result.json and node.json of a build's jobs, never those of a job that was
// retried. The result is good without node.json, but one that cannot be read is unknown, not absent.
func (f *follower) files(ctx context.Context, b buildkite.Build) (doc, node []byte, nodeErr, err error) {
	scripts := b.Scripts()
	file := func(path string, most int64) ([]byte, error) {
		list, err := f.client.Artifacts(ctx, f.Org, f.Pipeline, b.Number, path)
		if err != nil {
			return nil, err
		}
		best, last := -1, -1
		for i, a := range list {
			at := slices.IndexFunc(scripts, func(j buildkite.Job) bool { return j.ID == a.JobID })
			if a.Path == path && at > last {
				best, last = i, at
			}
		}
		if best < 0 {
			return nil, errNoResult
		}
		return f.client.Download(ctx, list[best], most)
	}
	doc, err = file(result.File, result.MaxBytes)
	if err == nil && f.Node {
		node, nodeErr = file(result.NodeFile, maxNodeFile)
	}
	switch {
	case errors.Is(nodeErr, errNoResult):
		nodeErr = nil
	case node != nil:
		if bad := json.Unmarshal(node, &noise.Record{}); bad != nil {
			nodeErr = fmt.Errorf("read %s: %w", result.NodeFile, bad)
		}
	}
	return doc, node, nodeErr, err
}

// conclude finishes a run with the verdict on what was fetched.
func (f *follower) conclude(r *run, job *buildkite.Job, text []byte, err error) {
	r.out.Raw = text
	if err == nil {
		r.out.Result, err = result.Read(text)
	}
	verdict, reason := judge(r.build, job, r.out.Result, r.job, err)
	if r.job.Compare != nil && r.out.Result != nil {
		verdict, reason = r.compare(verdict, reason)
	}
	if r.why != "" && verdict != Passed { // it may have passed before it was canceled
		verdict, reason = r.why, r.reason
	}
	f.finish(r, verdict, reason)
}

// judge returns the verdict on a build and the reason. A build never passes unless Buildkite
// says that it passed.
func judge(b buildkite.Build, job *buildkite.Job, r *result.Result, j Job, err error) (Verdict, string) {
	ended, ok := ending(b, job)
	switch {
	case r != nil:
		sentence, passed := r.Verdict()
		missing := slices.DeleteFunc(slices.Clone(j.Runs), r.Runs.Has)
		switch {
		case passed && len(missing) > 0:
			return NotPassed, fmt.Sprintf("its result has no run %s; check that the pipeline evaluates what it is sent", strings.Join(missing, ", "))
		case passed && ok:
			return Passed, sentence
		case passed:
			return NotPassed, "its result says that it passed, but " + ended
		case !r.Success:
			return NoResult, sentence
		}
		return NotPassed, sentence
	case errors.Is(err, errNoResult):
		if b.State == "canceled" || b.State == "canceling" {
			return Cancelled, "the build was canceled in Buildkite"
		}
		if !ok {
			return NoResult, ended
		}
		return NoResult, fmt.Sprintf("the job passed but left no %s; add it to the step's artifact_paths", result.File)
	default:
		return NoResult, err.Error()
	}
}

// exits explains exit statuses that the runner never has.
var exits = map[int]string{
	-1:  "the agent was lost, or the job was killed with it",
	96:  "the node refused the step; the job's log names the field, and says what to write instead",
	127: "the step's command was not found in the image; on a node of kbnode it is exec kbnode runner",
	137: "the job was killed, most likely for using more memory than its slot has",
	255: "the node could not run the job; see its log",
}

// ending describes how a build ended and reports whether it passed.
func ending(b buildkite.Build, job *buildkite.Job) (string, bool) {
	switch {
	case b.Blocked && b.State != "failed":
		return "the build is waiting for a person, at a block step of the pipeline", false
	case job == nil:
		return fmt.Sprintf("the build is %s and ran no command; check the pipeline's steps and branch settings", text.Line(b.State, 100)), false
	case b.State == "passed":
		return "the job passed", true
	case job.SignalReason == "agent_lost" || job.SignalReason == "agent_stop":
		return fmt.Sprintf("agent %s was lost during the job", agentOf(job)), false
	case job.SignalReason == "agent_refused":
		return fmt.Sprintf("agent %s refused the job; its log on the node says why: kbnode logs", agentOf(job)), false
	case job.SignalReason == "process_run_error":
		return fmt.Sprintf("agent %s could not start the job; the payload may be too large for its environment", agentOf(job)), false
	case job.State == "timed_out":
		return "the job exceeded the timeout of its step", false
	case job.ExitStatus != nil:
		why := cmp.Or(exits[*job.ExitStatus], "the job failed; see its log")
		return fmt.Sprintf("%s (exit status %d)", why, *job.ExitStatus), false
	}
	return fmt.Sprintf("the build is %s, and its job %s", text.Line(b.State, 100), text.Line(job.State, 100)), false
}

func agentOf(job *buildkite.Job) string {
	if job.Agent == nil {
		return "-"
	}
	return cmp.Or(text.Line(job.Agent.Name, 100), "-")
}
