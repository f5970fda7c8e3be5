package probe

import (
	"context"
	"errors"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Set changes a setting of one GPU. It is a separate run of the probe, with the same
// deadline, and changes nothing else. The driver forgets the setting when it is loaded
// again.
func Set(ctx context.Context, opts Options, s nvml.Setting) error {
	opts.GPU, opts.set = s.GPU, []string{s.GPU, s.Name, s.Value}
	r, err := Run(ctx, opts)
	if err != nil {
		return err
	}
	if len(r.GPUs) != 1 || r.GPUs[0].UUID != s.GPU {
		return errors.New("the NVML probe reports no result for the GPU")
	}
	if why := r.GPUs[0].Error; why != "" {
		return errors.New(text.Line(why, 300))
	}
	return nil
}
