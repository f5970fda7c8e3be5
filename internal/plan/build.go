package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

// What a slot should have at least, from the vendors' guide.
const (
	minSlotMemory = 16 << 30 // bytes
	minSlotCores  = 8
)

// Build computes what should be true of a machine. An error is a refusal that
// says what to change.
func Build(in Input) (*Plan, error) {
	inv, cfg := in.Inventory, in.Config.WithDefaults()
	slots, warnings, err := bind(inv.GPUs, cfg.GPUs, in.Bindings)
	if err != nil {
		return nil, err
	}
	node := cmp.Or(cfg.Node, inv.Hostname, "node")
	split, err := split(splitInputOf(inv, cfg, slots))
	if err != nil {
		return nil, err
	}
	p := &Plan{
		Schema:   Schema,
		Node:     safeName(node),
		Warnings: append(append([]string{}, warnings...), split.Warnings...), // never nil: JSON has a list
		Reserved: Reserved{CPUs: split.ReservedCPUs.String(), MemoryBytes: split.ReservedMemory},
	}
	if cfg.Queue == "" {
		cfg.Queue = gpuKey(slots[0].Model)
		p.Warnings = append(p.Warnings, fmt.Sprintf("no queue is given; %q is taken from the GPU's model, --queue sets another", cfg.Queue))
	}
	if err := p.addNode(in); err != nil {
		return nil, err
	}
	agents := in.Agents
	if cfg.Agent.Binary != "" {
		agents = Agents{} // that is the one to run
	}
	p.addReleases(agents)
	keys := map[string][]agentKey{} // by version
	if err := p.addAutoUpdate(in, cfg); err != nil {
		return nil, err
	}
	if cfg.Job.Disk == 0 {
		cfg.Job.Disk = config.Size(diskShare(inv.Disks, len(slots)))
	}
	var all cpuset.Set
	for i, b := range slots {
		blk := split.Blocks[i]
		all = all.Union(blk.CPUs)
		s := newSlot(b, blk, cfg, p.Node, in.Version)
		s.Drains = drained(in.Drains, s.Index)
		s.AgentVersion = agents.Of(s.Index)
		program := agents.program(s.AgentVersion, inv.Software.Agent)
		if keys[s.AgentVersion] == nil {
			if keys[s.AgentVersion], err = agentKeysFor(program); err != nil {
				return nil, err
			}
		}
		p.Slots = append(p.Slots, s)
		if s.Parked == "" && b.UUID == "" {
			p.Warnings = append(p.Warnings, fmt.Sprintf("slot %s: no driver names the GPU at %s, so it is known by its address only", s.Name, b.PCI))
		}
		if err := p.addSlot(in, cfg, program.Version, keys[s.AgentVersion], s); err != nil {
			return nil, err
		}
	}
	if err := p.addParent(all); err != nil {
		return nil, err
	}
	if err := p.addBindings(slots); err != nil {
		return nil, err
	}
	p.addTunables(inv, cfg)
	cores, memory, disk := TooSmall(inv, p.Slots[0])
	for _, w := range []string{cores, memory, disk} {
		if w != "" {
			p.Warnings = append(p.Warnings, w)
		}
	}
	p.Warnings = append(p.Warnings, unboundDisks(inv, cfg)...)
	p.sort()
	return p, nil
}

func splitInputOf(inv *inventory.Inventory, cfg config.Config, slots []bound) splitInput {
	in := splitInput{
		CPU: inv.CPU, Memory: inv.Memory,
		CPUsPerSlot: cfg.CPUsPerSlot, MemoryPerSlot: int64(cfg.MemoryPerSlot),
		ReserveCPUs: cfg.Reserve.CPUs, ReserveMemory: int64(cfg.Reserve.Memory),
		Virt: inv.OS.Virt,
	}
	for _, s := range slots {
		in.GPUs = append(in.GPUs, splitGPU{NUMANode: s.NUMANode, MemoryNode: s.MemoryNode, Name: "slot " + SlotName(s.Slot)})
	}
	return in
}

func newSlot(b bound, blk block, cfg config.Config, node, version string) Slot {
	queue := queueName(cfg.Queue, b, node)
	return Slot{
		Index: b.Slot, Name: SlotName(b.Slot), Queue: queue,
		GPUs: []SlotGPU{{
			UUID: b.UUID, PCI: b.PCI, Vendor: b.Vendor, Model: b.Model,
			NUMANode: b.NUMANode, Devices: gpuNodes(b),
		}},
		CPUs: blk.CPUs.String(), MemoryNodes: blk.MemoryNodes.String(), MemoryBytes: blk.MemoryBytes, DiskBytes: int64(cfg.Job.Disk),
		Agent:  node + "-" + SlotName(b.Slot),
		Tags:   agentTags(b, queue, node, version, cfg.Agent.Tags),
		User:   UserName(b.Slot),
		Parked: b.parked,
	}
}

// gpuNodes are the device nodes that a job of this GPU opens.
func gpuNodes(b bound) []string {
	if b.gpu == nil {
		return []string{}
	}
	nodes := []string{}
	if b.Vendor == "amd" {
		nodes = append(nodes, "/dev/kfd")
	} else if b.gpu.Minor >= 0 {
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia%d", b.gpu.Minor), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
	}
	if b.gpu.RenderMinor >= 0 {
		nodes = append(nodes, fmt.Sprintf("/dev/dri/renderD%d", b.gpu.RenderMinor))
	}
	return nodes
}

// sliceDevices is the device policy of a slot's slice. A container makes its
// device nodes with mknod, which gives nothing without the right to open them.
func sliceDevices(nodes []string) []Device {
	devices := []Device{{"char-*", "m"}, {"block-*", "m"}}
	for _, n := range nodes {
		devices = append(devices, Device{n, "rwm"})
	}
	return devices
}

// TooSmall says in a sentence each of what a slot has less than the least; "" of
// what is enough.
func TooSmall(inv *inventory.Inventory, s Slot) (cores, memory, disk string) {
	cpus, _ := cpuset.Parse(s.CPUs)
	whole := map[int]bool{}
	for _, c := range inv.CPU.List {
		if cpus.Contains(c.ID) {
			whole[c.Core] = true
		}
	}
	if n := len(whole); n < minSlotCores {
		cores = fmt.Sprintf("each slot has %d %s; %d are the minimum for fair timings", n, map[bool]string{true: "core", false: "cores"}[n == 1], minSlotCores)
	}
	if s.MemoryBytes < minSlotMemory {
		memory = fmt.Sprintf("each slot has %s of memory; %s are the minimum", config.Size(s.MemoryBytes), config.Size(minSlotMemory))
	}
	if s.DiskBytes > 0 && s.DiskBytes < minSlotDisk {
		disk = fmt.Sprintf("each slot has %s of disk; %s are the minimum", config.Size(s.DiskBytes), config.Size(minSlotDisk))
	}
	return cores, memory, disk
}

// bindingsFile is the content of BindingsPath.
type bindingsFile struct {
	WrittenBy string    `json:"written_by"`
	Schema    int       `json:"schema"`
	Slots     []Binding `json:"slots"`
}

func (p *Plan) addBindings(slots []bound) error {
	f := bindingsFile{WrittenBy: "kbnode", Schema: Schema}
	for _, s := range slots {
		f.Slots = append(f.Slots, s.Binding)
	}
	return p.addJSON(BindingsPath, 0o644, -1, f)
}

// ParseBindings reads the content of BindingsPath.
func ParseBindings(text []byte) ([]Binding, error) {
	var f bindingsFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("read slot bindings %s: %w", BindingsPath, err)
	}
	if f.Schema != Schema {
		return nil, errors.New("the slot bindings in " + BindingsPath + " were written by another version of kbnode; move the file away to bind the GPUs anew")
	}
	seen := map[int]bool{}
	for _, b := range f.Slots {
		if b.Slot < 0 || b.Slot > 4095 || seen[b.Slot] {
			return nil, fmt.Errorf("the slot bindings in %s name slot %d twice or out of range; move the file away to bind the GPUs anew", BindingsPath, b.Slot)
		}
		seen[b.Slot] = true
	}
	return f.Slots, nil
}

func (p *Plan) sort() {
	slices.SortFunc(p.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortStableFunc(p.Slices, func(a, b Slice) int { return a.Slot - b.Slot })
	slices.SortStableFunc(p.Units, func(a, b Unit) int { return a.Slot - b.Slot })
}
