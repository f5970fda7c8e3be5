package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// gpuIndex is the tag that distinguishes the slots of a node.
const gpuIndex = "gpu-index"

// noGPU is the vendor of slots without a GPU.
const noGPU = "none"

type pipelineFlags struct {
	queue, image, timeout, label, vendor, profile, root string
	index, priority                                     int
	agents                                              []string
	admin, asJSON                                       bool
}

func newPipeline(s term.Streams) *cobra.Command {
	var f pipelineFlags
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Print Buildkite pipelines for this node's queue and image",
		Long: `Print Buildkite pipelines for this node's queue and image. The default is eval.

On a machine that is not a node, queue and image are the variables KERNELBOT_QUEUE
and KERNELBOT_IMAGE of the build, the latter with a default.`,
		Example: `  kbnode pipeline >pipeline.yml
  kbnode pipeline docker-test --gpu-index 3
  kbnode pipeline eval --queue mi300 --image rocm:latest --vendor amd --json`,
		RunE: func(*cobra.Command, []string) error { return printPipeline(s, pipeline.Eval, f) },
	}
	cmd.SuggestionsMinimumDistance = 3
	fl := cmd.PersistentFlags()
	fl.StringVar(&f.queue, "queue", "", "Buildkite queue (default: this node's)")
	fl.StringVar(&f.image, "image", "", "the job's image (default: image.name of this node)")
	fl.StringVar(&f.timeout, "timeout", "", "time limit of the job, such as 15m, or in minutes (default: 90, of a test 15)")
	fl.IntVar(&f.index, gpuIndex, -1, "only the slot with this number")
	fl.StringArrayVar(&f.agents, "agent", nil, "only agents with the tag `KEY=VALUE`; may be repeated")
	fl.StringVar(&f.label, "label", "", "label of the step (default: what it does and where)")
	fl.StringVar(&f.vendor, "vendor", "", "vendor of the GPUs: nvidia, amd or none (default: this node's)")
	fl.StringVar(&f.profile, "profile", "", "strict or compatible profile (default: strict for evaluations)")
	fl.IntVar(&f.priority, "priority", 0, "of the job: of those that wait, the highest runs first")
	fl.BoolVar(&f.admin, "admin", false, "for verification runs, which go before submissions: --priority "+strconv.Itoa(pipeline.AdminPriority))
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	fl.StringVar(&f.root, "root", "/", "read a node from this directory or capture")
	for _, kind := range pipeline.Kinds {
		about := pipeline.About[kind]
		short, _, _ := strings.Cut(strings.ReplaceAll(about, "\n", " "), ". ")
		sub := &cobra.Command{
			Use: kind, Short: strings.TrimSpace(short), Long: about,
			RunE: func(*cobra.Command, []string) error { return printPipeline(s, kind, f) },
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

func printPipeline(s term.Streams, kind string, f pipelineFlags) error {
	o, err := f.options(s)
	if err != nil {
		return err
	}
	p, err := pipeline.Build(kind, o)
	if err != nil {
		return term.Usage(err)
	}
	if f.asJSON {
		return term.PrintJSON(s.Out, p)
	}
	_, err = s.Out.Write(p.YAML())
	return err
}

// options returns the flags, filled in with what is known of the node.
func (f *pipelineFlags) options(s term.Streams) (pipeline.Options, error) {
	o := pipeline.Options{Agents: map[string]string{}, Label: f.label, Profile: f.profile}
	var errs []error
	var err error
	o.Priority = f.priority
	if f.admin && f.priority != 0 {
		errs = append(errs, fmt.Errorf("--admin is --priority %d; leave out one of them", pipeline.AdminPriority))
	} else if f.admin {
		o.Priority = pipeline.AdminPriority
	}
	if o.Timeout, err = wholeMinutes(f.timeout); err != nil {
		errs = append(errs, err)
	}
	if f.index >= 0 {
		f.agents = append(f.agents, gpuIndex+"="+strconv.Itoa(f.index))
	} else if f.index != -1 {
		errs = append(errs, fmt.Errorf("--gpu-index %d: a slot's number is 0 or more", f.index))
	}
	for _, tag := range f.agents {
		key, value, ok := strings.Cut(tag, "=")
		switch old, twice := o.Agents[key]; {
		case !ok:
			errs = append(errs, fmt.Errorf("--agent %q: write KEY=VALUE", tag))
		case twice && old != value:
			errs = append(errs, fmt.Errorf("the tag %q is both %q and %q; give one of them", key, old, value))
		}
		o.Agents[key] = value
	}
	if !slices.Contains([]string{"", "nvidia", "amd", noGPU}, f.vendor) {
		errs = append(errs, fmt.Errorf("--vendor %q: write nvidia, amd or none", f.vendor))
	}
	if err := errors.Join(errs...); err != nil {
		return o, term.Usage(err)
	}
	machine, closeRoot, err := machineAt(s, f.root)
	if err != nil {
		return o, err
	}
	defer closeRoot()
	n, err := machine.Serves()
	if err != nil {
		return o, err
	}
	if n.Unread != nil {
		s.Warn("you may not read %s, so the image is unknown; use sudo", plan.ConfigPath)
	}
	vendor := cmp.Or(f.vendor, n.Vendor)
	o.AMD = vendor == "amd" || vendor == noGPU // in either case nothing of NVIDIA's is needed
	o.Image = cmp.Or(f.image, n.Image)
	o.Queue = f.queue
	if o.Queue == "" {
		o.Queue, err = n.Queue(f.index)
		if strings.Contains(o.Queue, "$") { // only the command line may name a variable
			err = fmt.Errorf("%.120q is not the name of a queue; fix it on the node, or add --queue NAME", o.Queue)
		}
	}
	return o, term.Usage(err)
}

// wholeMinutes parses a time limit, which Buildkite keeps in minutes. "" is 0.
func wholeMinutes(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return n, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d%time.Minute != 0 {
		return 0, fmt.Errorf("--timeout %q: write whole minutes, such as 15m", text)
	}
	return int(d / time.Minute), nil
}
