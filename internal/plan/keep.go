package plan

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/split"
)

// Last is what a slot was last planned with. The slot keeps it if the facts behind it cannot
// be read, and its memory and disk if the machine's differ only as they may between two plans.
type Last struct {
	CPUs        string `json:"cpus"`         // Linux list format
	MemoryNodes string `json:"memory_nodes"` // Linux list format
	MemoryBytes int64  `json:"memory_bytes"`
	DiskBytes   int64  `json:"disk_bytes"`
}

// LastNode records what the last plan was made from about the node itself.
type LastNode struct {
	Name          string             `json:"name,omitempty"`           // hostname, if no other name is configured
	ReservedCPUs  string             `json:"reserved_cpus"`            // Linux list format
	ReserveMemory config.Size        `json:"reserve_memory,omitempty"` // as configured
	MemoryPerSlot config.Size        `json:"memory_per_slot,omitempty"`
	Disk          config.Size        `json:"disk,omitempty"`
	Chosen        *Selection         `json:"chosen,omitempty"` // nil also in a file of an older kbnode
	Software      inventory.Software `json:"software"`         // only what plans depend on
}

// Selection is what the configuration says of which GPUs become which slots. While it says the same, slots keep
// what they have: a name may mean another GPU, or none, once a card was replaced, moved or lost.
type Selection struct {
	GPUs        []string   `json:"gpus,omitempty"`
	All         bool       `json:"all,omitempty"`
	GPUCount    int        `json:"gpu_count,omitempty"`
	GPUsPerSlot int        `json:"gpus_per_slot,omitempty"`
	Groups      [][]string `json:"groups,omitempty"`
}

// selectionOf returns nil if the configuration leaves it to kbnode.
func selectionOf(cfg config.Config) *Selection {
	s := &Selection{All: cfg.GPUs.All && cfg.GPUCount > 0, GPUCount: int(cfg.GPUCount)}
	s.GPUs, s.Groups = append(s.GPUs, cfg.GPUs.List...), append(s.Groups, cfg.Groups...)
	if cfg.GPUsPerSlot > 1 {
		s.GPUsPerSlot = cfg.GPUsPerSlot
	}
	if reflect.DeepEqual(s, &Selection{}) {
		return nil
	}
	return s
}

// Recall returns an inventory in which what could not be read is as last planned.
// It returns an error if something essential was never read.
func Recall(inv *inventory.Inventory, bindings *Bindings) (*inventory.Inventory, error) {
	out, last := *inv, cmp.Or(bindings.Node, &LastNode{})
	sw := &out.Software
	if inv.WhyUnread(inventory.SubjectHost) != "" {
		out.Hostname = last.Name
	}
	agent := inv.WhyUnread(inventory.SubjectAgent)
	if sw.Agent.Path == "" && slices.Contains(inv.Unread, inventory.SubjectFiles) || sw.Agent.Path != "" && (sw.Agent.Version == "" || agent != "") {
		sw.Agent = last.Software.Agent
		if sw.Agent.Version == "" && inv.Software.Agent.Path != "" {
			return nil, fmt.Errorf("%s does not report its version (%s), which decides how well slots are isolated; run it with --version, fix it or move it away, and try again",
				inv.Software.Agent.Path, agent)
		}
	}
	if sw.Docker.Version == "" && inv.WhyUnread(inventory.SubjectDocker) != "" {
		sw.Docker = last.Software.Docker
		sw.Docker.CDIFaults = inv.Software.Docker.CDIFaults // from files, which can be read without it
	}
	if slices.Contains(inv.Unread, inventory.SubjectCDI) && last.Software.Docker.Version != "" {
		sw.Docker.CDI, sw.Docker.CDIDevices = last.Software.Docker.CDI, last.Software.Docker.CDIDevices
	}
	if sw.Systemd == "" && inv.WhyUnread(inventory.SubjectSystem) != "" {
		sw.Systemd = last.Software.Systemd
	}
	if slices.Contains(inv.Unread, inventory.SubjectFiles) {
		sw.CgroupV2, sw.Cron = sw.CgroupV2 || last.Software.CgroupV2, sw.Cron || last.Software.Cron
		for now, was := range map[*string]string{&sw.Git: last.Software.Git, &sw.MkfsExt4: last.Software.MkfsExt4, &sw.Toolkit: last.Software.Toolkit} {
			if *now == "" {
				*now = was
			}
		}
	}
	out.GPUs = withUnreadGPUs(inv, bindings.Slots)
	return &out, nil
}

// unlisted returns why a new machine may have GPUs that are not in its inventory; ""
// if all are known.
func unlisted(inv *inventory.Inventory) string {
	for _, subject := range inv.Unread {
		pci, one := strings.CutPrefix(subject, inventory.GPUSubject(""))
		if subject == inventory.SubjectGPUs || one && !slices.ContainsFunc(inv.GPUs, func(g inventory.GPU) bool { return g.PCI == pci }) {
			return inv.WhyUnread(subject)
		}
	}
	return ""
}

// withUnreadGPUs marks the GPUs of slots whose instances NVML does not report, and
// adds those that may exist because the list of GPUs, or what is at their address,
// could not be read.
func withUnreadGPUs(inv *inventory.Inventory, bindings []Binding) []inventory.GPU {
	gpus := slices.Clone(inv.GPUs)
	silent := inv.NVIDIA != nil && inv.NVIDIA.NVMLError != ""
	for _, m := range keptMembers(bindings) {
		listed := slices.ContainsFunc(gpus, func(g inventory.GPU) bool { return g.PCI == m.PCI || g.UUID != "" && strings.EqualFold(g.UUID, m.UUID) })
		for i := range gpus { // even if NVML is gone: this GPU had instances
			g := &gpus[i]
			g.Unread = g.Unread || silent && g.Healthy && g.NVML == nil && m.MIG != nil && (g.UUID == m.UUID || g.PCI == m.PCI)
		}
		if !listed && (slices.Contains(inv.Unread, inventory.SubjectGPUs) || slices.Contains(inv.Unread, inventory.GPUSubject(m.PCI))) {
			gpus = append(gpus, inventory.GPU{
				Vendor: m.Vendor, UUID: m.UUID, PCI: m.PCI, Index: -1, Model: m.Model, NUMANode: m.NUMANode, MemoryNode: m.MemoryNode,
				Minor: -1, RenderMinor: -1, Healthy: true, Unread: true,
			})
		}
	}
	return gpus
}

// SayUnread returns a warning for everything that could not be read.
func SayUnread(inv *inventory.Inventory) (warnings []string) {
	for _, subject := range inv.Unread {
		warnings = append(warnings, fmt.Sprintf("%s: could not be read, so its part of the plan stays as it was: %s", subject, inv.WhyUnread(subject)))
	}
	return warnings
}

// lastSplit returns the last planned split, for a machine that cannot be split now.
// It returns an error if a slot had none, or if slots would share CPUs.
func lastSplit(slots []assignment, node *LastNode, total int64, why string) (split.Result, error) {
	var res split.Result
	var all cpuset.Set
	for _, s := range slots {
		var cpus, mems cpuset.Set
		err := errors.New("no earlier CPUs")
		if s.last != nil && node != nil && s.last.MemoryBytes >= split.MinMemory {
			if cpus, err = cpuset.Parse(s.last.CPUs); err == nil {
				mems, err = cpuset.Parse(s.last.MemoryNodes)
			}
		}
		if err != nil || cpus.Len() == 0 || !cpus.Disjoint(all) {
			return split.Result{}, fmt.Errorf("the machine cannot be split, because its CPUs and memory could not be read (%s) and slot %s has no CPUs to keep; try again when they can be read", why, s.Name)
		}
		all = all.Union(cpus)
		res.Blocks = append(res.Blocks, split.Block{CPUs: cpus, MemoryNodes: mems, MemoryBytes: s.last.MemoryBytes})
	}
	for _, b := range res.Blocks {
		total -= b.MemoryBytes
	}
	res.ReservedMemory = max(0, total)
	if node != nil {
		reserved, _ := cpuset.Parse(node.ReservedCPUs) // root wrote the file; if it is invalid, none are reserved
		res.ReservedCPUs = reserved.Difference(all)
	}
	return res, nil
}

// chooseSplit returns the split of the machine, or the last one if the machine cannot be read.
func chooseSplit(inv *inventory.Inventory, cfg config.Config, slots []assignment, bindings *Bindings) (split.Result, error) {
	if why := cmp.Or(inv.WhyUnread(inventory.SubjectCPU), inv.WhyUnread(inventory.SubjectMemory)); why != "" {
		return lastSplit(slots, bindings.Node, inv.Memory.TotalBytes, why)
	}
	if slices.ContainsFunc(slots, func(s assignment) bool {
		return slices.ContainsFunc(s.members, func(u Member) bool { return u.twice })
	}) {
		// It is unknown what that slot should have, so the others keep what they have.
		if res, err := lastSplit(slots, bindings.Node, inv.Memory.TotalBytes, ""); err == nil {
			return res, nil
		}
	}
	res, err := splitSlots(inv, cfg, slots)
	if err == nil {
		keepMemory(&res, slots, bindings.Node, cfg, inv.Memory.Nodes)
	}
	return res, err
}

// keepMemory lets slots keep their memory while their share differs only as it may between two boots of an
// unchanged machine; otherwise each boot would change all agents. What a slot keeps above its share comes out
// of the system's reserve on its NUMA nodes, at most half of it. A request that is met is the same at each boot.
func keepMemory(res *split.Result, slots []assignment, node *LastNode, cfg config.Config, nodes []inventory.NUMANode) {
	short := slices.IndexFunc(res.Warnings, func(w string) bool { return strings.HasPrefix(w, "memory_per_slot: ") })
	if node == nil || node.ReserveMemory != cfg.Reserve.Memory || node.MemoryPerSlot != cfg.MemoryPerSlot || cfg.MemoryPerSlot > 0 && short < 0 {
		return
	}
	var ram cpuset.Set // without the memory of GPUs, which are not split and may be missing
	for _, n := range nodes {
		if n.CPUs != "" {
			ram = ram.Union(cpuset.Of(n.ID))
		}
	}
	for i, s := range slots {
		b := res.Blocks[i]
		if s.last == nil || s.last.CPUs != b.CPUs.String() {
			return
		}
		if was, err := cpuset.Parse(s.last.MemoryNodes); err != nil || !was.Intersect(ram).Equal(b.MemoryNodes.Intersect(ram)) {
			return
		}
		if more := b.MemoryBytes - s.last.MemoryBytes; max(more, -more) > b.MemoryBytes/split.BootShare || -more > b.ReserveBytes/2 {
			return
		}
	}
	for i, s := range slots {
		b := &res.Blocks[i]
		if short >= 0 {
			w := &res.Warnings[short]
			*w = strings.Replace(*w, "gets "+config.Size(b.MemoryBytes).String(), "gets "+config.Size(s.last.MemoryBytes).String(), 1)
		}
		res.ReservedMemory += b.MemoryBytes - s.last.MemoryBytes
		b.MemoryBytes = s.last.MemoryBytes
	}
}

// lastNode returns what the next plan may need from this one.
func (p *Plan) lastNode(inv *inventory.Inventory, cfg config.Config) *LastNode {
	sw, d := inv.Software, inv.Software.Docker
	keys := agentKeys(cfg, Slot{}, sw.Agent.Version, "")
	sw.Agent.Keys = slices.DeleteFunc(slices.Clone(sw.Agent.Keys), func(name string) bool {
		return !slices.ContainsFunc(keys, func(k agentKey) bool { return k.name == name })
	})
	sw.Docker = inventory.Docker{ // lists are never nil in JSON
		Version: d.Version, RootDir: d.RootDir, CgroupDriver: d.CgroupDriver, StorageDriver: d.StorageDriver,
		CDI: d.CDI, CDIDirs: []string{}, Runtimes: append([]string{}, d.Runtimes...),
	}
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			if name := cdiName(g); slices.Contains(d.CDIDevices, name) && !slices.Contains(sw.Docker.CDIDevices, name) {
				sw.Docker.CDIDevices = append(sw.Docker.CDIDevices, name)
			}
		}
	}
	n := &LastNode{ReservedCPUs: p.Reserved.CPUs, ReserveMemory: cfg.Reserve.Memory, MemoryPerSlot: cfg.MemoryPerSlot, Disk: cfg.Job.Disk, Chosen: selectionOf(cfg), Software: sw}
	if cfg.Node == "" {
		n.Name = inv.Hostname
	}
	return n
}
