package submit

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/pipeline"
)

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
		p, err := pipeline.Build(pipeline.Eval, pipeline.Options{Queue: r.Queue, Image: r.Image, AMD: r.AMD, Profile: r.Profile, Timeout: r.Minutes()})
		if err != nil {
			errs = append(errs, err)
		} else {
			j.Build.Steps = p.Steps
		}
	}
	return j, errors.Join(errs...)
}
