package submit

import (
	"cmp"
	"errors"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/config"
)

// Target says where builds go and how they run there.
type Target struct {
	Org, Pipeline string
	Queue, Branch string
	GPU           string // name of the type of GPU; "" leaves it to Queue
	Arch          string // for nvcc; "" means none
	AMD           bool   // the GPUs are AMD's
	Image         string // "" means the pipeline's own
	Inline        bool   // builds bring their steps, so that the pipeline needs none
	Profile       string // of the job's container, with Inline; "" means strict
	Force         bool   // GPU and Arch need not fit the queue
	// QueueTime is how long a build may wait for an agent, and RunTime how long it may run,
	// before it is canceled. Zero means no limit.
	QueueTime, RunTime time.Duration
}

// Resolve fills in what follows from other fields. Its error says everything that is wrong.
func (t *Target) Resolve() error {
	var errs []error
	if t.RunTime < 0 || t.QueueTime < 0 {
		errs = append(errs, errors.New("a timeout cannot be negative; write one such as 20m"))
	}
	errs = append(errs, buildkite.CheckSlug("a pipeline", t.Pipeline))
	var g GPU
	var err error
	switch {
	case t.GPU != "":
		if g, err = GPUOf(t.GPU); err != nil && (t.Queue == "" || t.Arch == "") {
			errs = append(errs, err)
		}
	case t.Queue == "":
		errs = append(errs, errNoQueue)
	default:
		g, _, _ = find(t.Queue)
	}
	t.Queue = cmp.Or(t.Queue, g.Queue)
	errs = append(errs, t.Fits(t.GPU, t.Arch))
	t.Arch, t.AMD = cmp.Or(t.Arch, g.Arch), g.AMD()
	if t.Profile != "" && !t.Inline {
		errs = append(errs, errors.New("--profile needs --inline-steps; otherwise the pipeline's steps set the profile"))
	}
	if t.Inline {
		t.Image = cmp.Or(t.Image, config.DefaultImage)
	}
	return errors.Join(errs...)
}

// UseArch sets a problem's own architecture if nothing else tells one.
func (t *Target) UseArch(arch string) error {
	if t.GPU != "" || t.AMD || t.Arch != "" {
		return nil
	}
	t.Arch = arch
	return t.Fits("", arch)
}

// Minutes returns RunTime as Buildkite has it.
func (t *Target) Minutes() int { return int((t.RunTime + time.Minute - 1) / time.Minute) }
