package detect

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// useTimeout bounds one look at a GPU, including the wait for another probe.
const useTimeout = 20 * time.Second

// Occupancy is what uses a GPU at one moment.
type Occupancy struct {
	Driver    string         // version; "" for the kernel's own driver
	Compute   []nvml.Process // that compute on it
	Graphics  []nvml.Process // that draw on it; NVIDIA only
	UsedBytes int64          // of its memory; -1 if that says nothing about its processes
}

// ErrUntold means that the driver answers, and does not tell processes, as some virtual machines' do.
var ErrUntold = errors.New(nvml.Untold)

// NVIDIAOccupied looks at an NVIDIA GPU of this machine. An error means that the driver did not
// answer; it says nothing about the GPU. No handle is kept open.
func NVIDIAOccupied(ctx context.Context, uuid string) (Occupancy, error) {
	if !inventory.ValidUUID(uuid) {
		return Occupancy{}, errors.New("check the GPU: its UUID is unknown")
	}
	return nvidiaUse(ctx, probe.Options{GPU: uuid, Timeout: useTimeout})
}

func nvidiaUse(ctx context.Context, opts probe.Options) (Occupancy, error) {
	report, err := probe.Run(ctx, opts)
	if err != nil {
		return Occupancy{}, fmt.Errorf("check %s: %w", opts.GPU, err)
	}
	if len(report.GPUs) != 1 || report.GPUs[0].UUID != opts.GPU {
		return Occupancy{}, fmt.Errorf("check %s: the NVML probe reports another GPU", opts.GPU)
	}
	g := report.GPUs[0]
	failed := slices.ContainsFunc(g.Unread, func(why string) bool { return strings.Contains(why, "RunningProcesses") })
	if g.Error == nvml.Untold && !failed {
		return Occupancy{}, fmt.Errorf("check %s: %w", opts.GPU, ErrUntold)
	}
	if g.Error != "" {
		return Occupancy{}, fmt.Errorf("check %s: %s", opts.GPU, printable(g.Error))
	}
	o := Occupancy{Driver: printable(report.Driver), Compute: g.Processes, Graphics: g.Graphics, UsedBytes: -1}
	// The memory of a GPU that is a NUMA node belongs to the kernel, which also keeps other
	// things there and frees nothing when a process ends.
	if g.Memory != nil && g.MemoryNode == nil {
		o.UsedBytes = byteCount(g.Memory.UsedBytes)
	}
	return o, nil
}

// AMDOccupied looks at the AMD GPU whose render node is among these, on the machine below root.
// It reads what the compute driver reports about its processes: /sys/class/kfd/kfd/proc/<pid>
// has vram_<gpu_id>, in bytes, and the queues. A process that only opened the driver does not
// count.
func AMDOccupied(root string, nodes []string) (Occupancy, error) {
	t, err := openTree(root)
	if err != nil {
		return Occupancy{}, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	gpu, alone, err := amdNode(t, nodes)
	if err != nil {
		return Occupancy{}, fmt.Errorf("check the GPU: %w", err)
	}
	o := Occupancy{Driver: printable(t.text("sys/module/amdgpu/version")), UsedBytes: -1}
	if used, ok := t.number(pciDir + "/" + gpu.pci + "/mem_info_vram_used"); ok && alone {
		o.UsedBytes = used
	}
	procs := path.Join(path.Dir(path.Dir(kfdPath(t))), "proc")
	if !t.exists(procs) {
		return Occupancy{}, errors.New("check the GPU: the compute driver (KFD) does not list its processes")
	}
	for _, pid := range t.numbered(procs, "") {
		dir := procs + "/" + strconv.Itoa(pid)
		used, _ := t.number(dir + "/vram_" + gpu.id)
		queues := false
		for _, q := range t.numbered(dir+"/queues", "") {
			queues = queues || t.text(fmt.Sprintf("%s/queues/%d/gpuid", dir, q)) == gpu.id
		}
		if used > 0 || queues {
			o.Compute = append(o.Compute, nvml.Process{PID: uint32(pid), UsedBytes: uint64(used)})
		}
	}
	return o, nil
}

// amdNode returns the GPU whose render node is among these device nodes, and whether it is the whole PCI
// device, not a partition.
func amdNode(t tree, nodes []string) (gpu kfdGPU, alone bool, err error) {
	var render string
	for _, n := range nodes {
		if minor, ok := strings.CutPrefix(n, "/dev/dri/renderD"); ok {
			render = minor
		}
	}
	if render == "" {
		return gpu, false, errors.New("its render node is unknown")
	}
	all, _ := readKFD(t, amdDevices(t))
	at := slices.IndexFunc(all, func(n kfdGPU) bool { return strconv.Itoa(n.render) == render })
	if at < 0 || all[at].id == "" || all[at].id == "0" {
		return gpu, false, fmt.Errorf("the compute driver (KFD) does not list renderD%.8s", render)
	}
	gpu = all[at]
	parts := slices.DeleteFunc(all, func(n kfdGPU) bool { return n.pci != gpu.pci })
	return gpu, len(parts) == 1, nil
}

// AMDDevice returns the directory in /sys of the PCI device of an AMD GPU, or of a
// partition of one. It identifies the GPU by the render node among its device nodes.
func AMDDevice(nodes []string) (string, error) {
	t, err := openTree("/")
	if err != nil {
		return "", err
	}
	gpu, _, err := amdNode(t, nodes)
	if err != nil {
		return "", fmt.Errorf("find the GPU: %w", err)
	}
	return path.Join("/", pciDir, gpu.pci), nil
}
