package submit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// GPU is a type of GPU that kernelbot knows.
type GPU struct {
	Queue string // of its agents
	Arch  string // streaming multiprocessor architecture, for nvcc; "" for AMD
}

// archs maps GPU models, as plan names them in queues, to their architectures for nvcc; "" for
// AMD. Source: kernelbot's GPU_TO_SM and NVIDIA's list of compute capabilities.
var archs = map[string]string{
	"b200": "100", "gb200": "100", "b300": "103", "gb300": "103", "gb10": "121",
	"h100": "90a", "h200": "90a", "gh200": "90a",
	"a100": "80", "l40s": "89", "l40": "89", "l4": "89", "t4": "75", "v100": "70",
	"rtx-3090": "86", "rtx-4090": "89", "rtx-5090": "120",
	"mi100": "", "mi210": "", "mi250": "", "mi300": "", "mi300a": "", "mi308": "", "mi325": "", "mi350": "", "mi355": "",
}

// contracted holds the queues that kernelbot's own table names differently.
var contracted = map[string]string{"L40S_BK": "test"}

var (
	// vendorName matches the queue names of the other branch of kernelbot: nvidia-h100.
	vendorName = lazy.Regexp(`^(?:NVIDIA|AMD|NEBIUS)[-_]([A-Z0-9]+)(?:-\d{1,3})?$`)
	// shapeName splits the name of a slot that is not a whole GPU into model and shape:
	// b200-1g-23gb, mi300-cpx, b200x4.
	shapeName = lazy.Regexp(`^(.+?)((?:-\d+G(?:--?[A-Z0-9]+)*|-[SDTQC]PX)?(?:X\d{1,2})?)$`)
)

// GPUOf finds a type of GPU by its name in kernelbot, in any case, with or without _BK, or by
// the driver's name for the model. The queue is the one that a node with such GPUs has unless
// its operator chose another.
func GPUOf(name string) (GPU, error) {
	upper := strings.TrimSpace(strings.ToUpper(name))
	queue := contracted[upper]
	upper = strings.TrimSuffix(strings.TrimSuffix(upper, "_BK"), "_NEBIUS")
	if key, ok := modelOf(upper); ok {
		return GPU{cmp.Or(queue, key), archs[key]}, nil
	}
	if m := vendorName().FindStringSubmatch(upper); m != nil {
		if key, ok := modelOf(m[1]); ok {
			return GPU{strings.ToLower(strings.ReplaceAll(upper, "_", "-")), archs[key]}, nil
		}
	}
	if m := shapeName().FindStringSubmatch(upper); m != nil && m[2] != "" {
		if key, ok := modelOf(m[1]); ok {
			return GPU{key + strings.ToLower(m[2]), archs[key]}, nil
		}
	}
	names := slices.Collect(maps.Keys(archs))
	for i := range names {
		names[i] = strings.ToUpper(names[i])
	}
	return GPU{}, fmt.Errorf("%q is not a type of GPU that kbnode knows; it knows %s; for others give --queue and --arch", name, buildkite.Named(upper, names))
}

// modelOf finds a model in archs by its short name (MI300X, RTX4090) or the driver's name
// (NVIDIA H100 80GB HBM3).
func modelOf(name string) (key string, ok bool) {
	key = plan.GPUKey(name)
	if _, ok = archs[key]; ok && (strings.Contains(name, " ") || len(name) <= len(key)+1) {
		return key, true
	}
	for known := range archs {
		if strings.EqualFold(strings.ReplaceAll(known, "-", ""), name) {
			return known, true
		}
	}
	return "", false
}

// AMD reports whether the GPUs are AMD's.
func (g GPU) AMD() bool { return g.Arch == "" && g.Queue != "" }
