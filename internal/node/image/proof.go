package image

import (
	"cmp"
	"context"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// proofSize is the edge of the matrices that a proof multiplies.
const proofSize = 1024

// Prove has a slot run a canary that computes on each of its GPUs with what the image has for that, and tells what was
// computed, or why it did not pass. The error is why it did not run, or not to its end.
func (m *Machine) Prove(ctx context.Context, p plan.JobPolicy, imageID string) (passed bool, says string, err error) {
	doc, err := payloadOf(map[string]int{"size": proofSize, "gpus": visibleGPUs(p)})
	if err != nil {
		return false, "", err
	}
	c, err := m.inProfiles(ctx, p, imageID, doc)
	switch {
	case err != nil:
		return false, "", err
	case c.Passed:
		says = cmp.Or(c.Computed, "the container ran")
		if c.NotStrict != "" {
			says += ", but not in the strict profile: " + c.NotStrict
		}
		return true, says, nil
	case strings.Contains(c.Reason, noPython): // the container ran, and no other one of this image does more
		return true, "the container ran; the image has no python3, so nothing was computed", nil
	}
	return false, c.Reason, nil
}

// noPython is in what the runner says of an image without the interpreter.
const noPython = "python3 is not on the PATH"

// visibleGPUs returns how many GPUs a program of a slot sees: of several MIG instances, CUDA shows one.
func visibleGPUs(p plan.JobPolicy) int {
	for _, g := range p.GPUs {
		if g.Instance != "" {
			return 1
		}
	}
	return len(p.GPUs)
}
