package submit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// GPU is a type of GPU that kernelbot knows.
type GPU struct {
	Queue string // of its agents
	Arch  string // streaming multiprocessor architecture, for nvcc; "" for AMD

	model, shape string // without the vendor's or cloud's name; of a slot that is not a whole GPU
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

// kernelbot's own table names the queue of one type differently.
const oddGPU, oddQueue = "L40S_BK", "test"

var (
	// vendorName matches the queue names of the other branch of kernelbot: nvidia-h100.
	vendorName = lazy.Regexp(`^(?:NVIDIA|AMD|NEBIUS)[-_]([A-Z0-9]+)(?:-\d{1,3})?$`)
	// archForm splits an architecture into major version, minor version and suffix.
	archForm = lazy.Regexp(`^(\d+)(\d)([a-z]?)$`)
	// shapeName splits the name of a slot that is not a whole GPU into model and shape:
	// b200-1g-23gb, mi300-cpx, b200x4.
	shapeName = lazy.Regexp(`^(.+?)((?:-\d+G(?:--?[A-Z0-9]+)*|-[SDTQC]PX)?(?:X\d{1,2})?)$`)
)

// GPUOf finds a type of GPU by its name in kernelbot, in any case, with or without _BK, or by
// the driver's name for the model. The queue is the one that a node with such GPUs has unless
// its operator chose another.
func GPUOf(name string) (GPU, error) {
	if g, ok := find(name); ok {
		return g, nil
	}
	if several := strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune(", ;+", r) }); len(several) > 1 {
		if _, ok := find(several[0]); ok {
			return GPU{}, fmt.Errorf("%q is %d types of GPU, and a submission goes to one; write %s, and the same line again for another", name, len(several), several[0])
		}
	}
	names := slices.Collect(maps.Keys(archs))
	for i := range names {
		names[i] = strings.ToUpper(names[i])
	}
	return GPU{}, fmt.Errorf("%q is not a type of GPU that kbnode knows; it knows %s; for others give --queue and --arch", name, buildkite.Named(strings.ToUpper(name), names))
}

func find(name string) (GPU, bool) {
	upper := strings.TrimSpace(strings.ToUpper(name))
	odd := upper == oddGPU
	upper = strings.TrimSuffix(strings.TrimSuffix(upper, "_BK"), "_NEBIUS")
	if key, ok := modelOf(upper); odd && ok {
		return GPU{oddQueue, archs[key], key, ""}, true
	} else if ok {
		return GPU{key, archs[key], key, ""}, true
	}
	if m := vendorName().FindStringSubmatch(upper); m != nil {
		if key, ok := modelOf(m[1]); ok {
			return GPU{strings.ToLower(strings.ReplaceAll(upper, "_", "-")), archs[key], key, ""}, true
		}
	}
	if m := shapeName().FindStringSubmatch(upper); m != nil && m[2] != "" {
		if key, ok := modelOf(m[1]); ok {
			shape := strings.ToLower(m[2])
			return GPU{key + shape, archs[key], key, shape}, true
		}
	}
	return GPU{}, false
}

// Fits returns an error if a type of GPU or an architecture does not fit the GPUs that the queue is
// named for, unless that is forced. An empty gpu or arch is not given. Names that kbnode does not
// know fit everywhere.
func (t Target) Fits(gpu, arch string) error {
	queue := t.Queue
	if queue == oddQueue {
		queue = oddGPU
	}
	has, ok := find(queue)
	if !ok || t.Force {
		return nil
	}
	queueIs := fmt.Sprintf("queue %s is for %s%s GPUs", t.Queue, strings.ToUpper(has.model), has.shape)
	wanted, ok := find(gpu)
	switch {
	case ok && (wanted.model != has.model || wanted.shape != "" && wanted.shape != has.shape):
		return fmt.Errorf("%s, and --gpu %s names others; leave out --queue for queue %s, or --gpu for queue %s; --force sends it anyway", queueIs, gpu, wanted.Queue, t.Queue)
	case arch != "" && has.AMD():
		return fmt.Errorf("%s, which have no architecture of nvcc; leave it out; --force sends it anyway", queueIs)
	case arch != "" && !runsOn(arch, has.Arch):
		return fmt.Errorf("%s with architecture %s, on which no code for %s runs; leave it out, or name another queue; --force sends it anyway", queueIs, has.Arch, arch)
	}
	return nil
}

// runsOn reports whether code that nvcc makes for one architecture runs on another: one of the same
// major version that is not older, but only the very same for code with a suffix a. Source: CUDA
// C++ Programming Guide, "Binary Compatibility" and "Architecture-Specific Features".
func runsOn(code, gpu string) bool {
	c, g := archForm().FindStringSubmatch(code), archForm().FindStringSubmatch(gpu)
	if c == nil || g == nil {
		return true // nvcc knows better
	}
	return c[1] == g[1] && (c[2] == g[2] || c[3] != "a" && c[2] < g[2])
}

// modelOf finds a model in archs by its short name (MI300X, RTX4090) or the driver's name
// (NVIDIA H100 80GB HBM3).
func modelOf(name string) (key string, ok bool) {
	key = plan.GPUKey(name)
	_, ok = archs[key]
	if ok && (strings.Contains(name, " ") || len(name) <= len(key)+1) {
		return key, true
	}
	for known := range archs {
		if strings.EqualFold(strings.ReplaceAll(known, "-", ""), name) {
			return known, true
		}
	}
	return "", false
}

// GPUFor returns a type of GPU that a problem is for and kbnode knows.
func GPUFor(p *task.Task) string {
	for _, name := range p.GPUs {
		g, ok := find(name)
		if ok && (!g.AMD() || p.Submits() != task.CUDA) {
			return name
		}
	}
	return "B200_BK"
}

// AMD reports whether the GPUs are AMD's.
func (g GPU) AMD() bool { return g.Arch == "" && g.Queue != "" }
