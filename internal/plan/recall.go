package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// unread reports whether the device does not fully report how it is divided.
func (d *device) unread() bool {
	return slices.ContainsFunc(d.entries, (*inventory.GPU).PartsUnread)
}

// undivided returns the GPUs that no slot can be made of because how they are divided
// could not be read.
func undivided(gpus []inventory.GPU, pool []Member) []inventory.GPU {
	known := map[string]bool{} // by PCI address
	for _, m := range pool {
		known[m.PCI] = true
	}
	var out []inventory.GPU
	for _, g := range gpus {
		if g.PartsUnread() && !known[g.PCI] {
			known[g.PCI] = true
			out = append(out, g)
		}
	}
	return out
}

// keep fills in from the kept member what the GPU does not report now.
func (u *Member) keep(old Member) {
	same := u.UUID == "" || old.UUID == "" || strings.EqualFold(u.UUID, old.UUID)
	if same && u.PCI == old.PCI { // neither changes, or agents would register again whenever NVML is late
		u.Arch, u.Memory = cmp.Or(u.Arch, old.Arch), cmp.Or(u.Memory, old.Memory)
	}
	u.UUID = cmp.Or(u.UUID, old.UUID)
	if u.NUMANode < 0 && u.PCI == old.PCI {
		u.NUMANode = old.NUMANode // a failing GPU reports less
	}
	if !same {
		return
	}
	u.Devices, u.Instance = old.Devices, old.Instance
	if u.gpu.Unread {
		u.Model, u.Mode = cmp.Or(old.Model, u.Model), cmp.Or(u.Mode, old.Mode)
		if u.MemoryNode < 0 {
			u.MemoryNode = old.MemoryNode
		}
	}
}

// recall assumes that a part that its GPU does not report is unchanged. That fails if
// the GPU moved to other device files, or another card is in its place.
func recall(u Member) Member {
	g := u.gpu
	name := cmp.Or(g.UUID, g.PCI)
	node := fmt.Sprintf("/dev/nvidia%d", g.Minor)
	switch {
	case u.Devices == "",
		g.UUID != "" && u.UUID != "" && !strings.EqualFold(g.UUID, u.UUID),
		g.Vendor == "nvidia" && g.Minor >= 0 && !slices.Contains(strings.Split(u.Devices, ","), node):
		u.lost = fmt.Sprintf("%s cannot be identified, because the partitioning of GPU %s could not be read; see kbnode inventory", u.describe(), name)
	default:
		u.recalled = true
	}
	u.PCI, u.UUID = g.PCI, cmp.Or(g.UUID, u.UUID)
	return u
}

// giveNodes gives members their device nodes: those that the machine reports, or else
// those that they were last planned with, unless another member has them now.
func giveNodes(pool []Member) {
	owner := map[string]string{}
	for i := range pool {
		u := &pool[i]
		var complete bool
		u.nodes, complete = gpuNodes(*u)
		if u.gpu == nil || !u.gpu.Healthy || u.lost != "" {
			continue
		}
		sameInstance := u.mig == nil || u.mig.UUID == u.Instance
		u.nodesKept = u.recalled || !complete && u.Devices != "" && sameInstance
		if u.nodesKept {
			continue
		}
		u.Devices, u.Instance = strings.Join(u.nodes, ","), ""
		if u.mig != nil {
			u.Instance = u.mig.UUID
		}
		for _, n := range u.nodes {
			owner[n] = u.claim(n)
		}
	}
	for i := range pool {
		u := &pool[i]
		if !u.nodesKept {
			continue
		}
		u.nodes = strings.Split(u.Devices, ",")
		for _, n := range u.nodes {
			if who := owner[n]; who != "" && who != u.claim(n) {
				u.lost = fmt.Sprintf("the device files of %s could not be read, and %s belongs to another GPU or instance now", u.describe(), n)
			}
			owner[n] = cmp.Or(owner[n], u.claim(n))
		}
		if u.lost != "" {
			u.nodes, u.nodesKept = []string{}, false
		}
	}
}

// claim returns the owner of a device node: all members share the driver's, the parts
// of a GPU share the GPU's, and each has its own.
func (u Member) claim(node string) string {
	switch {
	case !strings.ContainsAny(node[len(node)-1:], "0123456789"):
		return "all"
	case strings.HasPrefix(node, "/dev/nvidia") && !strings.HasPrefix(node, "/dev/nvidia-caps/"):
		return u.PCI
	case u.MIG != nil: // compute instances share the capability of their GPU instance
		return fmt.Sprint(u.PCI, u.MIG.Start, u.MIG.Size)
	}
	return fmt.Sprint(u.PCI, u.Partition)
}

// overlap reports whether a and b cannot be in two slots, because they are the same
// GPU and not two parts of it.
func overlap(a, b Member) bool {
	sameGPU := strings.EqualFold(a.UUID, b.UUID)
	if a.UUID == "" || b.UUID == "" {
		sameGPU = a.PCI == b.PCI
	}
	switch {
	case !sameGPU || a.Vendor != b.Vendor:
		return false
	case a.MIG == nil && b.MIG == nil:
		return a.Partition == b.Partition
	case a.MIG == nil || b.MIG == nil:
		return true
	case a.MIG.Start == b.MIG.Start && a.MIG.Size == b.MIG.Size:
		return a.MIG.Compute == b.MIG.Compute
	}
	return a.MIG.Start < b.MIG.Start+b.MIG.Size && b.MIG.Start < a.MIG.Start+a.MIG.Size
}
