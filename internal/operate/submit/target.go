package submit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/plan/config"
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
	Priority      int    // of the job, with Inline; 0 is Buildkite's default
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
		g, _ = find(t.Queue)
	}
	t.Queue = cmp.Or(t.Queue, g.Queue)
	if _, name, is := strings.Cut(t.Image, "://"); is {
		errs = append(errs, fmt.Errorf("%.200q is not the name of an image; write --image %.200s", t.Image, name))
	} else if t.Image != "" && !pipeline.IsImage(t.Image) {
		errs = append(errs, fmt.Errorf("%.200q is not the name of an image; write one such as %s", t.Image, config.DefaultImage))
	}
	switch {
	case strings.Contains(t.Queue, "/"):
		errs = append(errs, fmt.Errorf("%.200q is not the name of a queue; write the name that its page shows, such as --queue b200", t.Queue))
	case strings.ContainsAny(t.Queue, ", \t"):
		errs = append(errs, fmt.Errorf("%.200q is not the name of a queue; write one name without blanks and commas, such as --queue b200", t.Queue))
	}
	errs = append(errs, t.Fits(t.GPU, t.Arch))
	t.Arch, t.AMD = cmp.Or(t.Arch, g.Arch), g.AMD()
	if t.Profile != "" && !t.Inline {
		errs = append(errs, errors.New("--profile needs --inline-steps; otherwise the pipeline's steps set the profile"))
	}
	if t.Priority != 0 && !t.Inline { // Buildkite takes no variable there in a pipeline's own steps
		errs = append(errs, errors.New("--priority needs --inline-steps; otherwise the pipeline's steps set the priority, as kbnode pipeline --priority prints them"))
	}
	errs = append(errs, pipeline.CheckPriority(t.Priority))
	if t.Inline {
		t.Image = cmp.Or(t.Image, config.DefaultImage)
	}
	return errors.Join(errs...)
}

// UseProblem sets a problem's own architecture if nothing else tells one. It returns an error if the GPUs
// cannot run the problem.
func (t *Target) UseProblem(p *task.Task) error {
	if err := t.FitsLang(p.Name(), p.Submits(), GPUFor(p)); err != nil {
		return err
	}
	if t.GPU != "" || t.AMD || t.Arch != "" {
		return nil
	}
	t.Arch = p.Arch
	return t.Fits("", p.Arch)
}

// FitsLang returns an error if the GPUs cannot run a language, unless that is forced. what is written in it,
// and instead is a type of GPU that can.
func (t *Target) FitsLang(what, lang, instead string) error {
	if lang != task.CUDA || !t.AMD || t.Force {
		return nil
	}
	return fmt.Errorf("%s is in CUDA C++, which the AMD GPUs of queue %s do not run; write --gpu %s instead; --force sends it anyway", what, t.Queue, instead)
}

// Minutes returns RunTime as Buildkite has it.
func (t *Target) Minutes() int { return minutes(t.RunTime) }

// maxEnviron is the maximum size of an encoded payload, in bytes. With the rest of the job's
// environment it must stay below Linux's limit for starting a program, 2 MiB with the agent's
// stack.
const maxEnviron = 1_900_000

// Request describes an evaluation.
type Request struct {
	Target
	RunID   string
	Payload string // JSON text
	Message string
}

var errNoQueue = errors.New("no queue is given; write --queue b200, or --gpu B200_BK")

// CheckSize returns an error if an encoded payload is too large for a job.
func CheckSize(encoded string) error {
	if len(encoded) > maxEnviron {
		return fmt.Errorf("the encoded payload has %d bytes, and %d fit into a job's environment; make the submission or the tests smaller", len(encoded), maxEnviron)
	}
	return nil
}

// Job returns the build for r. Its error joins everything that is wrong with r.
func (r Request) Job() (Job, error) {
	var errs []error
	env := map[string]string{"KERNELBOT_RUN_ID": r.RunID, "KERNELBOT_QUEUE": r.Queue, "GPU_QUEUE": r.Queue}
	if r.Image != "" {
		env["KERNELBOT_IMAGE"] = r.Image
	}
	text := payload.Encode([]byte(r.Payload))
	errs = append(errs, CheckSize(text))
	for _, kv := range payload.Environ(text) {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
		if k == payload.Var { // in one piece, so that pipelines of the older launcher can read it too
			env[payload.OldVar] = v
		}
	}
	if r.Queue == "" {
		errs = append(errs, errNoQueue)
	}
	j := Job{RunID: r.RunID, Build: buildkite.NewBuild{
		Commit: "HEAD", Branch: cmp.Or(r.Branch, "main"), Message: r.Message, Env: env,
	}}
	if r.Inline {
		p, err := pipeline.Build(pipeline.Eval, pipeline.Options{Queue: r.Queue, Image: r.Image, AMD: r.AMD, Profile: r.Profile, Timeout: r.Minutes(), Priority: r.Priority})
		if err != nil {
			errs = append(errs, err)
		} else {
			j.Build.Steps = p.Steps
		}
	}
	return j, errors.Join(errs...)
}

// CheckQueue returns the tags of an agent in queue, or an error if none is connected: a build would wait
// there forever. If the token may not list agents, it returns neither.
func CheckQueue(ctx context.Context, c *buildkite.Client, org, queue string) (tags []string, err error) {
	queues := map[string]bool{}
	err = c.EachAgent(ctx, org, func(a buildkite.Agent) bool {
		if a.StandsIn() {
			return true
		}
		for _, q := range a.Queues() {
			queues[q] = true
		}
		tags = a.Tags
		return !queues[queue] // of thousands, the first match is enough
	})
	switch status := buildkite.Refused(err); {
	case status == http.StatusForbidden:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if queues[queue] {
		return tags, nil
	}
	if len(queues) == 0 {
		return nil, fmt.Errorf("no agent is connected in queue %s or any other queue of %s; --force creates the build anyway", queue, org)
	}
	return nil, fmt.Errorf("no agent is connected in queue %s; there are agents in %s; --force creates the build anyway", queue, buildkite.Named(queue, slices.Collect(maps.Keys(queues))))
}
