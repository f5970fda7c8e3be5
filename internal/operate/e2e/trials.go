package e2e

import (
	"cmp"
	"embed"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
)

// waiting is the problem that concurrent jobs run.
//
//go:embed wait
var waiting embed.FS

// holdFor returns how long each of n concurrent jobs runs at least, so that the first still runs
// when the last begins: agents ask for work every ten seconds, and Buildkite accepts 50 requests
// a minute.
func holdFor(n int) time.Duration {
	return 15*time.Second + time.Duration(n)*1500*time.Millisecond
}

// target returns where the builds of a part go, and how long they may run.
func (o Options) target(part string) submit.Target {
	t := o.Target
	switch {
	case t.RunTime > 0:
	case part == Evaluation:
		t.RunTime = o.EvalTime
	default:
		t.RunTime = 2*submit.Overhead + o.Hold
	}
	return t
}

// Builds returns the builds that Run creates for a part, n of them for Concurrency. It sends no
// requests.
func (o Options) Builds(part string, n int) ([]submit.Job, error) {
	trials, err := o.trials(part, n)
	return jobsOf(trials), err
}

func jobsOf(trials []trial) []submit.Job {
	jobs := make([]submit.Job, len(trials))
	for i, t := range trials {
		jobs[i] = t.job
	}
	return jobs
}

func (o Options) trials(part string, n int) (all []trial, err error) {
	switch part {
	case Artifact:
		all, err = o.artifact()
	case Evaluation:
		all, err = o.evaluation()
	default:
		all, err = o.atOnce(n)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", part, err)
	}
	return all, nil
}

func (o Options) artifact() ([]trial, error) {
	to := o.target(Artifact)
	p, err := pipeline.Build(pipeline.ArtifactTest, pipeline.Options{Queue: to.Queue, Timeout: to.Minutes()})
	if err != nil {
		return nil, err
	}
	id := o.RunID + "-artifact"
	return []trial{{pipeline.ArtifactTest, submit.Job{RunID: id, Build: buildkite.NewBuild{
		Commit: "HEAD", Branch: cmp.Or(o.Branch, "main"), Message: "kbnode e2e: an artifact",
		Env:   map[string]string{"KERNELBOT_RUN_ID": id, "KERNELBOT_QUEUE": o.Queue},
		Steps: p.Steps, // regardless of the pipeline's own
	}}, whole}}, nil
}

// evaluation returns a build for each submission, the right one first.
func (o Options) evaluation() ([]trial, error) {
	var all []trial
	for _, s := range o.Problem.Submissions {
		doc, err := o.Problem.Task.Config(s.Text, o.Arch, o.Mode)
		if err != nil {
			return nil, err
		}
		job, err := o.request(Evaluation, s.File, doc)
		if err != nil {
			return nil, err
		}
		all = append(all, trial{s.File, job, func(out submit.Outcome) (string, bool) { return judged(out, s.Kind, o.Mode) }})
	}
	return all, nil
}

// atOnce returns n jobs that wait, each with a submission that contains its run ID.
func (o Options) atOnce(n int) ([]trial, error) {
	t, err := task.ReadFS(waiting, "wait")
	if err != nil {
		return nil, err
	}
	hold := cmp.Or(o.Hold, holdFor(n)).Seconds()
	var all []trial
	for i := range n {
		name := fmt.Sprintf("job %d", i+1)
		id := o.RunID + "-" + fmt.Sprint(i+1)
		doc, err := t.Config(fmt.Sprintf("RUN = %q\nSECONDS = %g\n", id, hold), "", "test")
		if err != nil {
			return nil, err
		}
		job, err := o.request(Concurrency, fmt.Sprint(i+1), doc)
		if err != nil {
			return nil, err
		}
		all = append(all, trial{name, job, own})
	}
	return all, nil
}

func (o Options) request(part, name, doc string) (submit.Job, error) {
	return submit.Request{Target: o.target(part), RunID: o.RunID + "-" + name, Payload: doc, Message: fmt.Sprintf("kbnode e2e: %s, %s", part, name)}.Job()
}
