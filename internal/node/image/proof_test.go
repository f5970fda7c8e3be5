package image

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestProve(t *testing.T) {
	t.Parallel()
	const good = `{"success":true,"error":"","runs":{"test":{"run":{"passed":true,"result":{"test.0.message":"it multiplied"}}}}}`
	whole, part := plan.PolicyGPU{UUID: "GPU-1"}, plan.PolicyGPU{UUID: "GPU-1", Instance: "MIG-1"}
	for _, tt := range []struct {
		name   string
		s      stage
		gpus   []plan.PolicyGPU
		asked  string
		passed bool
		says   string
		err    string
	}{
		{name: "a GPU that computes", s: stage{result: good}, gpus: []plan.PolicyGPU{whole}, asked: `{"gpus":1,"size":1024}`, passed: true, says: "it multiplied"},
		{name: "two GPUs", s: stage{result: good}, gpus: []plan.PolicyGPU{whole, whole}, asked: `{"gpus":2,"size":1024}`, passed: true, says: "it multiplied"},
		{name: "two MIG instances, of which CUDA shows one", s: stage{result: good}, gpus: []plan.PolicyGPU{part, part}, asked: `{"gpus":1,"size":1024}`, passed: true, says: "it multiplied"},
		{name: "an image that needs root", s: stage{result: good, loose: true}, gpus: []plan.PolicyGPU{whole}, passed: true, says: "it multiplied, but not in the strict profile: it left no result and exited with 0:"},
		{
			name: "a GPU that computes wrongly, and then right", gpus: []plan.PolicyGPU{whole}, says: "it multiplies wrongly",
			s: stage{result: good, strict: `{"success":true,"runs":{"test":{"run":{"passed":false,"exit_code":112,"result":{"test.0.error":"it multiplies wrongly","test.0.wrong":"yes"}}}}}`},
		},
		{
			name: "one that does not", gpus: []plan.PolicyGPU{whole}, says: "torch sees no GPU",
			s: stage{result: `{"success":true,"runs":{"test":{"run":{"passed":false,"exit_code":112,"result":{"test.0.error":"torch sees no GPU"}}}}}`},
		},
		{
			name: "an image without Python", gpus: []plan.PolicyGPU{whole}, passed: true, says: "the container ran; the image has no python3, so nothing was computed",
			s: stage{result: `{"success":false,"error":"python3 is not on the PATH; install it in the job's image","runs":{}}`, end: slot.Outcome{ExitCode: 1}},
		},
		{name: "an image that says nothing", gpus: []plan.PolicyGPU{whole}, s: stage{end: slot.Outcome{ExitCode: 3}}, says: "it left no result and exited with 3:"},
		{name: "a job that goes first", gpus: []plan.PolicyGPU{whole}, s: stage{end: slot.Outcome{Canceled: true}}, err: "a job started"},
		{name: "a slot that is parked", gpus: []plan.PolicyGPU{whole}, s: stage{end: slot.Outcome{NodeFault: "the slot is parked: a process"}}, err: "the slot is parked"},
		{name: "a container that was killed", gpus: []plan.PolicyGPU{whole}, s: stage{end: slot.Outcome{ExitCode: 137}}, err: ErrKilled.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.s
			m := s.serve(t)
			p := m.Policies[0]
			p.Profile, p.GPUs = "compatible", tt.gpus
			passed, says, err := m.Prove(t.Context(), p, id(1))
			if tt.err != "" {
				must.Err(t, err, tt.err)
				return
			}
			must.Do(t, err)
			if passed != tt.passed || says != tt.says {
				t.Errorf("%t, %q", passed, says)
			}
			doc, err := payload.Inflate(s.specs[0].Env[0].Value)
			must.Do(t, err)
			if !strings.Contains(doc, `"tests":[`+tt.asked) {
				t.Errorf("payload %s", doc)
			}
		})
	}
}
