package inventory

import (
	"context"
	"slices"
)

// ReadGPUs is like Read, but reads only the GPUs of the machine below root: they change
// while a machine runs, and everything else costs more.
func ReadGPUs(ctx context.Context, root string) ([]GPU, *NVIDIA, []Problem, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, nil, nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	gpus, nv, problems := readNVIDIA(ctx, t)
	more, _, amd := readAMD(t)
	gpus = append(gpus, more...)
	sortGPUs(gpus)
	unread := t.unread()
	markUnread(gpus, unread)
	return gpus, nv, slices.Concat(problems, amd, unread), nil
}
