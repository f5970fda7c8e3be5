package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/split"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// divide splits the machine for the slots. A card that was added, which the operator did not choose, must not stop
// the others: if the machine cannot be split with it, it is in no slot.
func (b *builder) divide() error {
	var err error
	if b.parts, err = b.splitFor(b.slots); err == nil {
		return nil
	}
	isNew := func(s assignment) bool { return !slices.ContainsFunc(s.members, Member.bound) }
	kept := only(b.slots, func(s assignment) bool { return !isNew(s) })
	if b.Reshape || len(b.cfg.GPUs.List) > 0 || b.cfg.GPUCount > 0 || len(kept) == 0 || len(kept) == len(b.slots) {
		return err
	}
	parts, worse := b.splitFor(kept)
	if worse != nil {
		return err
	}
	for _, s := range only(b.slots, isNew) {
		b.warn("%s is in no slot: %v", s.members[0].describe(), err)
	}
	b.slots, b.parts = kept, parts
	return nil
}

// splitFor returns the split of the machine. Slots keep their memory while the machine's differs only as it may between
// two boots; otherwise each boot would change all agents. What a slot keeps above its share comes out of the system's
// reserve on its NUMA nodes, at most half of it.
func (b *builder) splitFor(slots []assignment) (split.Result, error) {
	if why := cmp.Or(b.inv.WhyUnread(inventory.SubjectCPU), b.inv.WhyUnread(inventory.SubjectMemory)); why != "" && b.last == nil {
		return split.Result{}, fmt.Errorf("the machine cannot be split, because its CPUs and memory could not be read (%s); try again when they can be read", why)
	}
	b.memory = b.inv.Memory
	if slices.ContainsFunc(slots, func(s assignment) bool { return slices.ContainsFunc(s.members, func(u Member) bool { return u.twice }) }) {
		// It is unknown what that slot should have, so all keep what they have.
		if res, ok := lastSplit(b.inv, slots); ok {
			return res, nil
		}
	}
	now, err := splitSlots(b.inv, b.memory, b.cfg, slots)
	if err != nil || b.last == nil {
		return now, err
	}
	before := earlierMemory(b.inv.Memory, b.last.Memory)
	was, err := splitSlots(b.inv, before, b.cfg, slots)
	if err != nil {
		return now, nil //nolint:nilerr // the machine as it is can be split
	}
	for i, is := range now.Blocks {
		more := is.MemoryBytes - was.Blocks[i].MemoryBytes
		if max(more, -more) > is.MemoryBytes/split.BootShare || -more > is.ReserveBytes/2 {
			return now, nil
		}
	}
	b.memory, now.Warnings = before, was.Warnings
	for i := range now.Blocks {
		block := &now.Blocks[i]
		now.ReservedMemory += block.MemoryBytes - was.Blocks[i].MemoryBytes
		block.MemoryBytes = was.Blocks[i].MemoryBytes
	}
	return now, nil
}

// lastSplit returns what slots were last planned with; ok is false if one had nothing, or if they would share CPUs.
func lastSplit(inv *inventory.Inventory, slots []assignment) (res split.Result, ok bool) {
	res.ReservedMemory = inv.Memory.TotalBytes
	res.ReservedCPUs, _ = cpuset.Parse(inv.CPU.Allowed) // if it is broken, no slot's CPUs are among them
	for _, s := range slots {
		if s.last == nil || s.last.MemoryBytes < split.MinMemory {
			return res, false
		}
		cpus, err := cpuset.Parse(s.last.CPUs)
		nodes, errNodes := cpuset.Parse(s.last.MemoryNodes)
		if err != nil || errNodes != nil || cpus.Len() == 0 || cpus.Difference(res.ReservedCPUs).Len() > 0 {
			return res, false
		}
		res.ReservedCPUs = res.ReservedCPUs.Difference(cpus)
		res.ReservedMemory -= s.last.MemoryBytes
		res.Blocks = append(res.Blocks, split.Block{CPUs: cpus, MemoryNodes: nodes, MemoryBytes: s.last.MemoryBytes})
	}
	return res, true
}

// earlierMemory returns the memory with the size that each node of CPUs had, if that differs only as it may between two
// boots. Memory of GPUs is not split, and may be missing.
func earlierMemory(now, last inventory.Memory) inventory.Memory {
	out := inventory.Memory{TotalBytes: now.TotalBytes, Nodes: slices.Clone(now.Nodes)}
	if near(now.TotalBytes, last.TotalBytes) {
		out.TotalBytes = last.TotalBytes
	}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		at := slices.IndexFunc(last.Nodes, func(o inventory.NUMANode) bool { return o.ID == n.ID && (o.CPUs == "") == (n.CPUs == "") })
		if at >= 0 && near(n.MemoryBytes, last.Nodes[at].MemoryBytes) {
			n.MemoryBytes, n.HugepagesBytes = last.Nodes[at].MemoryBytes, last.Nodes[at].HugepagesBytes
		}
	}
	return out
}

func near(now, was int64) bool { return max(now-was, was-now) <= now/split.BootShare }
