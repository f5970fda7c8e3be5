package submit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/pipeline"
)

// maxEnviron bounds an encoded payload in bytes: with the rest of a job's environment
// it has to stay below what Linux starts a program with, 2 MiB for the agent's stack.
const maxEnviron = 1_900_000

// GPU is a type of GPU that kernelbot knows.
type GPU struct {
	Queue string // of its agents
	Arch  string // of its streaming multiprocessors, for nvcc; "" is AMD's
}

// gpus are the types by their names in kernelbot; those of its Buildkite agents end
// in _BK. Others are found by their model's name.
var gpus = map[string]GPU{
	"B200_BK": {"b200", "100"}, "H100_BK": {"h100", "90a"}, "MI300_BK": {"mi300", ""}, "L40S_BK": {"test", "89"},
	"B200": {"b200", "100"}, "B300": {"b300", "103"}, "H100": {"h100", "90a"}, "H200": {"h200", "90a"}, "A100": {"a100", "80"}, "L40S": {"l40s", "89"},
	"MI300": {"mi300", ""}, "MI300X": {"mi300x", ""}, "MI325X": {"mi325x", ""}, "MI355X": {"mi355x", ""}, "MI210": {"mi210", ""},
}

// GPUOf finds a type of GPU, in any case, with _BK or without.
func GPUOf(name string) (GPU, error) {
	upper := strings.ToUpper(name)
	for _, n := range []string{upper, strings.TrimSuffix(upper, "_BK")} {
		if g, ok := gpus[n]; ok {
			return g, nil
		}
	}
	var names []string
	for n := range gpus {
		if !strings.HasSuffix(n, "_BK") {
			names = append(names, n)
		}
	}
	return GPU{}, fmt.Errorf("%q is no type of GPU that kbnode knows; there are %s; for others give --queue and --arch", name, strings.Join(buildkite.Near(name, names), ", "))
}

// AMD says that the GPUs are AMD's.
func (g GPU) AMD() bool { return g.Arch == "" && strings.HasPrefix(g.Queue, "mi") }

// Request is what an operator wants evaluated.
type Request struct {
	RunID          string
	Payload        string // JSON text
	Queue, Image   string // Image "" is the pipeline's own
	Branch, Commit string
	Message        string
	// Inline sends the steps along, so that the pipeline needs none.
	Inline  bool
	AMD     bool
	Agents  map[string]string // further tags, with Inline
	Minutes int               // of the job, with Inline; 0 is the steps' default
	Env     map[string]string // further variables
}

// Job makes the build of a request.
func (r Request) Job() (Job, error) {
	var errs []error
	env := map[string]string{"KERNELBOT_RUN_ID": r.RunID, "KERNELBOT_QUEUE": r.Queue}
	if r.Image != "" {
		env["KERNELBOT_IMAGE"] = r.Image
	}
	maps.Copy(env, r.Env)
	text := payload.Encode([]byte(r.Payload))
	if len(text) > maxEnviron {
		errs = append(errs, fmt.Errorf("the payload has %d bytes when it is encoded, and %d fit into a job's environment; make the submission or the tests smaller", len(text), maxEnviron))
	}
	for _, kv := range payload.Environ(text) {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	if r.Queue == "" {
		errs = append(errs, errors.New("no queue is given; write --queue b200, or --gpu B200_BK"))
	}
	j := Job{RunID: r.RunID, Build: buildkite.NewBuild{
		Commit: cmp.Or(r.Commit, "HEAD"), Branch: cmp.Or(r.Branch, "main"), Message: r.Message, Env: env,
	}}
	if r.Inline {
		p, err := pipeline.Build(pipeline.Eval, pipeline.Options{Queue: r.Queue, Image: r.Image, AMD: r.AMD, Agents: r.Agents, Timeout: r.Minutes})
		if err != nil {
			errs = append(errs, err)
		} else {
			j.Build.Steps = p.Steps
		}
	}
	return j, errors.Join(errs...)
}
