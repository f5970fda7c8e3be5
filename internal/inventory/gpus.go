package inventory

import "context"

// ReadGPUs reads nothing but the GPUs of the machine below root, as Read does: they
// change while a machine runs, and all else costs more.
func ReadGPUs(ctx context.Context, root string) ([]GPU, *NVIDIA, []Problem, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, nil, nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	gpus, nv, problems := readNVIDIA(ctx, t.root, t.live())
	more, _, amd := readAMD(t)
	gpus = append(gpus, more...)
	sortGPUs(gpus)
	return gpus, nv, append(problems, amd...), nil
}
