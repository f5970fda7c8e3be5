package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/split"
	"github.com/gpu-mode/kbnode/internal/text"
)

// Build computes what should be true of a machine. An error is a refusal that
// says what to change.
func Build(in Input) (*Plan, error) {
	read, cfg, bindings := in.Inventory, *in.Config, cmp.Or(in.Bindings, &Bindings{})
	inv, err := Recall(read, bindings)
	if err != nil {
		return nil, err
	}
	in.Inventory = inv
	if why := unlisted(inv); why != "" && len(bindings.Slots) == 0 && !cfg.GPUs.None {
		return nil, fmt.Errorf("the list of GPUs could not be read, so no slots can be planned; install again when it can be read (%s)", why)
	}
	selection := selectionOf(cfg)
	settled := !in.Reshape && selection != nil && bindings.Node != nil && reflect.DeepEqual(bindings.Node.Chosen, selection)
	slots, warnings, err := bind(inv.GPUs, cfg, bindings.Slots, in.Reshape, settled)
	if err != nil {
		return nil, err
	}
	node := cmp.Or(cfg.Node, inv.Hostname, "node")
	if cfg.Node == "" && inv.Hostname == "" && slices.Contains(inv.Unread, inventory.SubjectHost) {
		return nil, fmt.Errorf("the host name could not be read (%s), and agents are named after it; set one with --node (node)", inv.WhyUnread(inventory.SubjectHost))
	}
	parts, err := chooseSplit(inv, cfg, slots, bindings)
	if err != nil && !in.Reshape && len(cfg.GPUs.List) == 0 && cfg.GPUCount == 0 {
		// A card that was added, which the operator did not choose, must not stop the others.
		isNew := func(s assignment) bool { return !slices.ContainsFunc(s.members, Member.bound) }
		kept := only(slots, func(s assignment) bool { return !isNew(s) })
		if n := len(kept); n > 0 && n < len(slots) {
			if again, worse := chooseSplit(inv, cfg, kept, bindings); worse == nil {
				for _, s := range only(slots, isNew) {
					warnings = append(warnings, fmt.Sprintf("%s is in no slot: %v", s.members[0].describe(), err))
				}
				slots, parts, err = kept, again, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, SayUnread(inv)...)
	p := &Plan{
		Schema:   Schema,
		Node:     cleanName(node),
		Warnings: append(append([]string{}, warnings...), parts.Warnings...), // never nil: JSON has a list
		Reserved: Reserved{CPUs: parts.ReservedCPUs.String(), MemoryBytes: parts.ReservedMemory},
	}
	addresses := map[string]bool{}
	for _, g := range inv.GPUs {
		addresses[g.PCI] = true
	}
	for _, s := range slots { // including missing ones
		for _, u := range s.members {
			addresses[u.PCI] = true
		}
	}
	p.GPUs = len(addresses)
	p.chooseQueue(&cfg, slots)
	cfg.Job.TasksMax = min(cfg.Job.TasksMax, MaxPIDs) // no cgroup takes more, and containers would not start
	was, is := read.Software.Agent, inv.Software.Agent
	if err := p.addNode(in, was.Version == is.Version && len(was.Keys) == len(is.Keys)); err != nil {
		return nil, err
	}
	release := in.Agent
	if cfg.Agent.Binary != "" {
		release = AgentRelease{} // that is the one to run
	}
	agent := release.program(inv.Software.Agent)
	p.addRelease(in.Agent) // which stays for when it is the one to run again
	if err := p.addAutoUpdate(in, cfg); err != nil {
		return nil, err
	}
	if err := chooseDisks(inv, cfg, slots, bindings.Node); err != nil {
		return nil, err
	}
	var all cpuset.Set
	queued := map[string]int{} // slots, by queue
	for _, b := range slots {
		queued[queueName(cfg.Queue, b.Slot, p.Node)]++
	}
	for i, b := range slots {
		blk := parts.Blocks[i]
		all = all.Union(blk.CPUs)
		s := b.Slot
		s.Queue, s.Shape, s.Agent = queueName(cfg.Queue, s, p.Node), shapeKey(s), p.Node+"-"+s.Name
		s.CPUs, s.MemoryNodes, s.MemoryBytes = blk.CPUs.String(), blk.MemoryNodes.String(), blk.MemoryBytes
		s.Tags = agentTags(s, p.Node, in.Version, cfg.Agent.Tags)
		s.Tags = append(s.Tags, fmt.Sprintf("slots=%d", queued[s.Queue])) // tells kbnode queue how many agents are missing
		if limit, _ := cfg.Job.Limit(); limit > 0 {                       // tells kbnode submit what a job can take
			s.Tags = append(s.Tags, fmt.Sprintf("time-limit=%dm", limit/60))
		}
		s.Drains = drainsOf(in.Drains, s.Index)
		s.AgentVersion = release.Version
		if s.Parked == "" {
			if s.Parked = Driverless(inv, s); s.Parked != "" {
				p.Warnings = append(p.Warnings, s.ParkedWarning())
			}
		}
		p.Slots = append(p.Slots, s)
		for _, g := range s.GPUs {
			if s.Parked == "" && g.UUID == "" {
				p.Warnings = append(p.Warnings, fmt.Sprintf("slot %s: no driver reports a UUID for the GPU at %s, so it is known only by its address", s.Name, g.PCI))
			}
		}
		if err := p.addSlot(in, cfg, agent, s); err != nil {
			return nil, err
		}
	}
	if err := p.addParent(all); err != nil {
		return nil, err
	}
	if err := p.addBindings(slots, p.lastNode(inv, cfg)); err != nil {
		return nil, err
	}
	p.addTunables(inv, cfg)
	cores, memory, disk := TooSmall(inv, p)
	for _, w := range []string{cores, parts.Unreserved, memory, disk, cfg.Job.NetworksWarning()} {
		if w != "" {
			p.Warnings = append(p.Warnings, w)
		}
	}
	if w := p.sharedMemory(inv, cfg); w != "" {
		p.Warnings = append(p.Warnings, w)
	}
	p.Warnings = append(p.Warnings, unboundDisks(inv, cfg, slots)...)
	if len(cfg.Job.AllowedNetworks) > 0 && cfg.Job.Network == config.NetworkBridge {
		p.Warnings = append(p.Warnings, "job.allowed_networks has no effect by itself: jobs reach everything that the node reaches; set job.network: internet")
	}
	p.Warnings = append(p.Warnings, p.withoutSlot(in.Drains)...)
	p.sort()
	return p, nil
}

// chooseQueue names the queue after the slots' shape if none is configured, and
// warns if one queue mixes shapes.
func (p *Plan) chooseQueue(cfg *config.Config, slots []assignment) {
	var shapes []string
	for _, s := range slots {
		if key := shapeKey(s.Slot); !slices.Contains(shapes, key) {
			shapes = append(shapes, key)
		}
	}
	list := strings.Join(shapes, ", ")
	switch {
	case cfg.Queue == "" && len(shapes) == 1:
		p.Warnings = append(p.Warnings, fmt.Sprintf("no queue is set; using %q, from the GPU's model (--queue sets another)", shapes[0]))
	case cfg.Queue == "":
		p.Warnings = append(p.Warnings, fmt.Sprintf("no queue is set; each slot uses one for its shape: %s (--queue sets others)", list))
	case len(shapes) > 1 && !strings.Contains(cfg.Queue, "{"):
		p.Warnings = append(p.Warnings, fmt.Sprintf("slots of different shapes (%s) take jobs from one queue, %s; give each shape its own with --queue '%s-{shape}'", list, cfg.Queue, cfg.Queue))
	}
	cfg.Queue = cmp.Or(cfg.Queue, "{shape}")
}

// sliceDevices returns the device policy of a slot's slice. A container creates
// its device nodes with mknod, which is useless without permission to open them.
func sliceDevices(nodes []string) []Device {
	devices := []Device{{"char-*", "m"}, {"block-*", "m"}}
	for _, n := range nodes {
		devices = append(devices, Device{n, "rwm"})
	}
	return devices
}

// TooSmall returns a sentence for each resource of which slots have less than the
// minimum; "" for one that is enough.
func TooSmall(inv *inventory.Inventory, p *Plan) (cores, memory, disk string) {
	s := slices.MinFunc(p.Slots, func(a, b Slot) int { return cmp.Compare(a.MemoryBytes, b.MemoryBytes) })
	who := "each slot"
	if slices.ContainsFunc(p.Slots, func(o Slot) bool { return o.MemoryBytes != s.MemoryBytes }) {
		who = "slot " + s.Name
	}
	cpus, _ := cpuset.Parse(s.CPUs)
	if n := len(split.Cores(inv.CPU.List, cpus)); n < split.MinCores {
		cores = fmt.Sprintf("%s has %s; %d is the minimum for fair timings", who, text.Count(n, "core"), split.MinCores)
	}
	if s.MemoryBytes < split.MinSlotMemory {
		memory = fmt.Sprintf("%s has %s of memory; %s is the minimum", who, config.Size(s.MemoryBytes), config.Size(split.MinSlotMemory))
	}
	if s.DiskBytes > 0 && s.DiskBytes < minSlotDisk {
		disk = fmt.Sprintf("%s has %s of disk; %s is the minimum", who, config.Size(s.DiskBytes), config.Size(minSlotDisk))
	}
	return cores, memory, disk
}

func (p *Plan) addBindings(slots []assignment, node *LastNode) error {
	f := Bindings{WrittenBy: "kbnode", Schema: Schema, Node: node}
	for i, s := range slots {
		b, planned := s.binding(), p.Slots[i]
		b.Last = &Last{CPUs: planned.CPUs, MemoryNodes: planned.MemoryNodes, MemoryBytes: planned.MemoryBytes, DiskBytes: planned.DiskBytes}
		f.Slots = append(f.Slots, b)
	}
	return p.addJSON(BindingsPath, 0o644, -1, f)
}

// ParseBindings reads the content of BindingsPath.
func ParseBindings(text []byte) (*Bindings, error) {
	var f Bindings
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("read slot bindings %s: %w; move the file away to bind the GPUs again", BindingsPath, err)
	}
	if f.Schema != Schema {
		return nil, errors.New("the slot bindings in " + BindingsPath + " were written by another version of kbnode; move the file away to bind the GPUs again")
	}
	listed := map[int]bool{}
	for _, b := range f.Slots {
		if b.Slot < 0 || b.Slot > 4095 || listed[b.Slot] {
			return nil, fmt.Errorf("the slot bindings in %s list slot %d twice or out of range; move the file away to bind the GPUs again", BindingsPath, b.Slot)
		}
		listed[b.Slot] = true
	}
	slices.SortFunc(f.Slots, func(a, b Binding) int { return a.Slot - b.Slot })
	return &f, nil
}

func (p *Plan) sort() {
	slices.SortFunc(p.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortStableFunc(p.Slices, func(a, b Slice) int { return a.Slot - b.Slot })
	slices.SortStableFunc(p.Units, func(a, b Unit) int { return a.Slot - b.Slot })
}
