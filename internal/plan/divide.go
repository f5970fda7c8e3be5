package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/split"
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

// splitFor returns the split of the machine. Slots keep their memory while their share differs only as it may between
// two boots of an unchanged machine; otherwise each boot would change all agents. What a slot keeps above its share
// comes out of the system's reserve on its NUMA nodes, at most half of it.
func (b *builder) splitFor(slots []assignment) (split.Result, error) {
	if why := cmp.Or(b.inv.WhyUnread(inventory.SubjectCPU), b.inv.WhyUnread(inventory.SubjectMemory)); why != "" && b.last == nil {
		return split.Result{}, fmt.Errorf("the machine cannot be split, because its CPUs and memory could not be read (%s); try again when they can be read", why)
	}
	b.memory = b.inv.Memory
	now, err := splitSlots(b.inv, b.memory, b.cfg, slots)
	if err != nil || b.last == nil {
		return now, err
	}
	before := earlierMemory(b.inv.Memory, b.last.Memory)
	res, err := splitSlots(b.inv, before, b.cfg, slots)
	if err != nil {
		return now, nil //nolint:nilerr // the machine as it is can be split
	}
	for i, is := range now.Blocks {
		was := res.Blocks[i]
		more := is.MemoryBytes - was.MemoryBytes
		if max(more, -more) > is.MemoryBytes/split.BootShare || -more > is.ReserveBytes/2 {
			return now, nil
		}
	}
	b.memory = before
	res.ReservedMemory += b.inv.Memory.TotalBytes - before.TotalBytes
	return res, nil
}

// earlierMemory returns the memory with the sizes that its nodes had.
func earlierMemory(now, last inventory.Memory) inventory.Memory {
	out := inventory.Memory{TotalBytes: cmp.Or(last.TotalBytes, now.TotalBytes), Nodes: slices.Clone(now.Nodes)}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		at := slices.IndexFunc(last.Nodes, func(o inventory.NUMANode) bool { return o.ID == n.ID && o.CPUs == n.CPUs })
		if at >= 0 && n.MemoryBytes > 0 { // the kernel accepts no node without memory
			n.MemoryBytes, n.HugepagesBytes = last.Nodes[at].MemoryBytes, last.Nodes[at].HugepagesBytes
		}
	}
	return out
}
