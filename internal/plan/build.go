package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/split"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// builder is a plan in the making.
type builder struct {
	Input
	*Plan
	cfg    config.Config
	inv    *inventory.Inventory // as read, or else as last planned
	last   *inventory.Inventory // nil on a new machine
	memory inventory.Memory     // as the split counts it
	disks  []inventory.DiskFree // as the slots' disks count them
	slots  []assignment
	parts  split.Result
}

func (b *builder) warn(format string, args ...any) {
	b.Warnings = append(b.Warnings, fmt.Sprintf(format, args...))
}

// Build computes what should be true of a machine. An error is a refusal that
// says what to change.
func Build(in Input) (*Plan, error) {
	in.Bindings = cmp.Or(in.Bindings, &Bindings{})
	b := &builder{Input: in, cfg: *in.Config, last: in.Bindings.Last, Plan: &Plan{Schema: Schema, Warnings: []string{}}} // never nil: JSON has a list
	for _, step := range []func() error{b.recall, b.assign, b.divide, b.chooseDisks, b.addAll, b.keep} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.Plan, nil
}

// recall takes what could not be read from the last inventory.
func (b *builder) recall() (err error) {
	if b.inv, err = Recall(b.Inventory, b.Bindings); err != nil {
		return err
	}
	switch {
	case b.cfg.Node == "" && b.inv.Hostname == "" && slices.Contains(b.inv.Unread, inventory.SubjectHost):
		return fmt.Errorf("the host name could not be read (%s), and agents are named after it; set one with --node (node)", b.inv.WhyUnread(inventory.SubjectHost))
	case len(b.Bindings.Slots) == 0 && !b.cfg.GPUs.None && unlisted(b.inv) != "":
		return fmt.Errorf("the list of GPUs could not be read, so no slots can be planned; install again when it can be read (%s)", unlisted(b.inv))
	}
	for _, subject := range []string{inventory.SubjectDocker, inventory.SubjectCDI, inventory.SubjectFiles} {
		if why := b.inv.WhyUnread(subject); why != "" && b.last == nil && len(b.Bindings.Slots) > 0 {
			return fmt.Errorf("%s could not be read (%s), and what slots were planned with is unknown: %s is missing or broken; try again when it can be read", subject, why, LastPath)
		}
	}
	b.Node = cleanName(cmp.Or(b.cfg.Node, b.inv.Hostname, "node"))
	if b.cfg.Node == "" && inventory.Nameless(b.inv.Hostname) {
		b.warn("the host name is %s, and agents are named after it, as others' may be; set a name with --node (node)", b.inv.Hostname)
	}
	b.cfg.Job.TasksMax = min(b.cfg.Job.TasksMax, MaxPIDs) // no cgroup takes more, and containers would not start
	return nil
}

// assign makes slots of GPUs.
func (b *builder) assign() error {
	selection := selectionOf(b.cfg)
	settled := !b.Reshape && selection != nil && reflect.DeepEqual(b.Bindings.Chosen, selection)
	slots, warnings, err := bind(b.inv.GPUs, b.cfg, b.Bindings.Slots, b.Reshape, settled)
	b.slots, b.Warnings = slots, append(b.Warnings, warnings...)
	return err
}

// addAll adds what the node and its slots need.
func (b *builder) addAll() error {
	b.Warnings = append(append(b.Warnings, SayUnread(b.inv)...), b.parts.Warnings...)
	b.Reserved = Reserved{CPUs: b.parts.ReservedCPUs.String(), MemoryBytes: b.parts.ReservedMemory}
	b.GPUs = b.countGPUs()
	b.chooseQueue()
	if err := b.addNode(); err != nil {
		return err
	}
	release := b.Agent
	if b.cfg.Agent.Binary != "" {
		release = AgentRelease{} // that is the one to run
	}
	agent := release.program(b.inv.Software.Agent)
	b.addRelease(b.Agent) // which stays for when it is the one to run again
	if err := b.addAutoUpdate(); err != nil {
		return err
	}
	var all cpuset.Set
	queued := map[string]int{} // slots, by queue
	for _, s := range b.slots {
		queued[queueName(b.cfg.Queue, s.Slot, b.Node)]++
	}
	for i, a := range b.slots {
		all = all.Union(b.parts.Blocks[i].CPUs)
		s := b.planSlot(a.Slot, b.parts.Blocks[i])
		s.Tags = append(s.Tags, fmt.Sprintf("slots=%d", queued[s.Queue])) // tells kbnode queue how many agents are missing
		if limit, _ := b.cfg.Job.Limit(); limit > 0 {                     // tells kbnode submit what a job can take
			s.Tags = append(s.Tags, fmt.Sprintf("time-limit=%dm", limit/60))
		}
		s.AgentVersion = release.Version
		b.Slots = append(b.Slots, s)
		if err := b.addSlot(agent, s); err != nil {
			return err
		}
	}
	if err := b.addParent(all); err != nil {
		return err
	}
	b.addTunables(b.inv, b.cfg)
	b.warnOfLimits()
	return nil
}

// countGPUs returns how many GPUs the machine has, including missing ones of slots.
func (b *builder) countGPUs() int {
	addresses := map[string]bool{}
	for _, g := range b.inv.GPUs {
		addresses[g.PCI] = true
	}
	for _, s := range b.slots {
		for _, u := range s.members {
			addresses[u.PCI] = true
		}
	}
	return len(addresses)
}

// planSlot completes a slot with its block, and parks it if its jobs would have no driver.
func (b *builder) planSlot(s Slot, block split.Block) Slot {
	s.Queue, s.Shape, s.Agent = queueName(b.cfg.Queue, s, b.Node), shapeKey(s), b.Node+"-"+s.Name
	s.CPUs, s.MemoryNodes, s.MemoryBytes = block.CPUs.String(), block.MemoryNodes.String(), block.MemoryBytes
	s.Tags = agentTags(s, b.Node, b.Version, append(hardwareTags(s, b.inv), b.imageTags()...), b.cfg.Agent.Tags)
	s.Drains = drainsOf(b.Drains, s.Index)
	if s.Parked == "" {
		s.Parked = Driverless(b.inv, s)
		if s.Parked != "" {
			b.warn("%s", s.ParkedWarning())
		}
	}
	for _, g := range s.GPUs {
		if s.Parked == "" && g.UUID == "" {
			b.warn("slot %s: no driver reports a UUID for the GPU at %s, so it is known only by its address", s.Name, g.PCI)
		}
	}
	return s
}

// warnOfLimits warns of slots that are small, and of limits that do not hold.
func (b *builder) warnOfLimits() {
	cores, memory, disk := TooSmall(b.inv, b.Plan)
	warnings := append([]string{cores, b.parts.Unreserved, memory, disk, b.cfg.Job.NetworksWarning(), b.sharedMemory(b.inv, b.cfg)}, unboundDisks(b.inv, b.cfg, b.slots)...)
	if len(b.cfg.Job.AllowedNetworks) > 0 && b.cfg.Job.Network == config.NetworkBridge {
		warnings = append(warnings, "job.allowed_networks has no effect by itself: jobs reach everything that the node reaches; set job.network: internet")
	}
	warnings = append(warnings, b.withoutSlot(b.Drains)...)
	b.Warnings = append(b.Warnings, only(warnings, func(w string) bool { return w != "" })...)
}

// keep adds the files that the next plan is made from.
func (b *builder) keep() error {
	f := Bindings{WrittenBy: "kbnode", Schema: Schema, Chosen: selectionOf(*b.Config)}
	for i, a := range b.slots {
		kept, s := a.binding(), b.Slots[i]
		kept.Last = &Last{CPUs: s.CPUs, MemoryNodes: s.MemoryNodes, MemoryBytes: s.MemoryBytes}
		f.Slots = append(f.Slots, kept)
	}
	last, err := renderLast(b.used())
	if err != nil {
		return err
	}
	b.addFile(LastPath, 0o644, -1, last)
	err = b.addJSON(BindingsPath, 0o644, -1, f)
	b.sort()
	return err
}

// chooseQueue names the queue after the slots' shape if none is configured, and
// warns if one queue mixes shapes.
func (b *builder) chooseQueue() {
	var shapes []string
	for _, s := range b.slots {
		if key := shapeKey(s.Slot); !slices.Contains(shapes, key) {
			shapes = append(shapes, key)
		}
	}
	list := strings.Join(shapes, ", ")
	switch {
	case b.cfg.Queue == "" && len(shapes) == 1:
		b.warn("no queue is set; using %q, from the GPU's model (--queue sets another)", shapes[0])
	case b.cfg.Queue == "":
		b.warn("no queue is set; each slot uses one for its shape: %s (--queue sets others)", list)
	case len(shapes) > 1 && !strings.Contains(b.cfg.Queue, "{"):
		b.warn("slots of different shapes (%s) take jobs from one queue, %s; give each shape its own with --queue '%s-{shape}'", list, b.cfg.Queue, b.cfg.Queue)
	}
	b.cfg.Queue = cmp.Or(b.cfg.Queue, "{shape}")
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
