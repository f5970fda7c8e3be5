package cli

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/task"
)

const defaultPipeline = "kernelbot"

// targetFlags say where builds go and how they run there.
type targetFlags struct {
	api                                                apiFlags
	queue, gpu, arch, pipeline, branch, image, profile string
	timeout, queueTimeout                              time.Duration
	amd, inline, force, dryRun, asJSON                 bool // amd is not a flag: --gpu implies it
}

func (t *targetFlags) add(cmd *cobra.Command) {
	t.api.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&t.queue, "queue", "", "Buildkite queue of the agents (default: that of --gpu)")
	fl.StringVar(&t.gpu, "gpu", "", "type of GPU, such as B200_BK; sets queue and architecture")
	fl.StringVar(&t.arch, "arch", "", "architecture for nvcc, such as 90a (default: that of --gpu or of the queue's name)")
	fl.StringVar(&t.pipeline, "pipeline", "", "pipeline, as in its URL (default: BUILDKITE_PIPELINE, or "+defaultPipeline+")")
	fl.StringVar(&t.branch, "branch", "main", "branch of the pipeline's repository")
	fl.StringVar(&t.image, "image", "", "image of the job (default: the pipeline's)")
	fl.BoolVar(&t.inline, "inline-steps", false, "send the evaluation's steps with the build")
	fl.StringVar(&t.profile, "profile", "", "with --inline-steps: strict or compatible profile (default: strict)")
	fl.DurationVar(&t.timeout, "timeout", 0, "how long a job may run, such as 20m (default: depends on the job)")
	fl.DurationVar(&t.queueTimeout, "queue-timeout", 30*time.Minute, "how long it may wait for an agent")
	fl.BoolVar(&t.force, "force", false, "create builds even if the queue has no agent or the name of other GPUs")
	fl.BoolVar(&t.dryRun, "dry-run", false, "print the requests, and send nothing")
	fl.BoolVar(&t.asJSON, "json", false, "print JSON")
}

// resolve fills in what follows from other flags and the environment. Its error says everything
// that is wrong.
func (t *targetFlags) resolve() error {
	var errs []error
	if t.timeout < 0 || t.queueTimeout < 0 {
		errs = append(errs, errors.New("a timeout cannot be negative; write one such as 20m"))
	}
	t.pipeline = cmp.Or(t.pipeline, os.Getenv("BUILDKITE_PIPELINE"), defaultPipeline)
	errs = append(errs, buildkite.CheckSlug("a pipeline", t.pipeline))
	var g submit.GPU
	var err error
	switch {
	case t.gpu != "":
		if g, err = submit.GPUOf(t.gpu); err != nil && (t.queue == "" || t.arch == "") {
			errs = append(errs, err)
		}
	case t.queue == "":
		errs = append(errs, errors.New("no queue is given; write --queue b200, or --gpu B200_BK"))
	default:
		g, _ = submit.GPUOfQueue(t.queue)
	}
	t.queue = cmp.Or(t.queue, g.Queue)
	errs = append(errs, t.fits(t.gpu, t.arch))
	t.arch, t.amd = cmp.Or(t.arch, g.Arch), g.AMD()
	if t.profile != "" && !t.inline {
		errs = append(errs, errors.New("--profile needs --inline-steps; otherwise the pipeline's steps set the profile"))
	}
	if t.inline {
		t.image = cmp.Or(t.image, config.DefaultImage)
	}
	return errors.Join(errs...)
}

// useArch sends a problem's own architecture if nothing else tells one.
func (t *targetFlags) useArch(p *task.Task) error {
	if t.gpu != "" || t.amd || t.arch != "" {
		return nil
	}
	t.arch = p.Arch
	return t.fits("", t.arch)
}

// fits returns an error if a type of GPU or an architecture contradicts the queue, unless it is forced.
func (t *targetFlags) fits(gpu, arch string) error {
	if t.force {
		return nil
	}
	return submit.CheckTarget(t.queue, gpu, arch)
}
