package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Member is a GPU of a slot, or a part of one: its identity, and the facts that
// the split needs while it is missing.
type Member struct {
	GPU        int    `json:"gpu"`  // its permanent number on this machine; parts of a GPU share it
	UUID       string `json:"uuid"` // of the whole GPU: an instance gets a new one each time it is created
	PCI        string `json:"pci"`
	Vendor     string `json:"vendor"`
	Model      string `json:"model"`
	Partition  int    `json:"partition,omitempty"` // AMD: number within the PCI device
	Mode       string `json:"mode,omitempty"`      // AMD: how the GPU is partitioned, "SPX" if it is not; "" if unknown
	NUMANode   int    `json:"numa_node"`
	MemoryNode int    `json:"memory_node"`
	Arch       string `json:"arch,omitempty"`         // "sm_100", "gfx942"; "" if never read
	Memory     int64  `json:"memory_bytes,omitempty"` // of the GPU, partition or instance; 0 if never read
	// MIG is the place of a MIG instance in its GPU; nil for a whole GPU.
	MIG *Placement `json:"mig,omitempty"`
	// What it was last planned with, used when the current values cannot be read.
	Devices  string `json:"devices,omitempty"`  // device nodes, by path, with commas
	Instance string `json:"instance,omitempty"` // UUID of the MIG instance

	// What the machine has in its place now.
	gpu       *inventory.GPU // nil while it is missing
	mig       *inventory.MIG // the instance
	slot      int            // the one that has kept it; -1 for none
	lost      string         // why it cannot be used; "" when it can
	twice     bool           // an earlier slot has kept it, too
	later     bool           // an instance beside others that slots have kept: an install makes a slot of it
	recalled  bool           // its GPU does not report it, so it is assumed to be unchanged
	nodes     []string       // device nodes that its jobs open
	nodesKept bool           // nodes are those that it was last planned with
}

// Placement identifies a MIG instance permanently, however often it is recreated.
type Placement struct {
	Profile string `json:"profile"` // "1g.23gb"
	Start   int    `json:"start"`   // first memory slice
	Size    int    `json:"size"`    // in memory slices
	Compute int    `json:"compute"` // number of the compute instance within
}

// Part returns the name of a part of a GPU: a MIG profile or AMD's partition mode;
// "" for a whole GPU.
func (m Member) Part() string {
	switch {
	case m.MIG != nil:
		return m.MIG.Profile
	case m.Mode != "SPX":
		return m.Mode
	}
	return ""
}

// bound reports whether a slot has kept the member.
func (m Member) bound() bool { return m.slot >= 0 }

func (m Member) describe() string {
	switch {
	case m.MIG != nil:
		return fmt.Sprintf("MIG instance %s at memory slice %d of GPU %s", m.MIG.Profile, m.MIG.Start, cmp.Or(m.UUID, m.PCI))
	case m.Part() != "":
		return fmt.Sprintf("partition %d of GPU %s", m.Partition, cmp.Or(m.UUID, m.PCI))
	}
	return "GPU " + cmp.Or(m.UUID, m.PCI)
}

// device is one PCI device with its inventory entries: one for each partition,
// or else a single one.
type device struct {
	number    int // -1 for none yet
	entries   []*inventory.GPU
	kept      int      // number of kept members on it
	has, lost []Member // of these, those that it has now, and the others
}

func (d *device) sick() *inventory.GPU {
	if g := d.entries[0]; len(d.entries) == 1 && !g.Healthy {
		return g
	}
	return nil
}

// findMembers matches the members that slots have kept with what the machine has. A
// member that is missing is kept. So is one that a healthy GPU no longer offers,
// because someone made other instances or partitions, unless reshape is set: then
// slots are made of what there is now.
func findMembers(gpus []inventory.GPU, bindings []Binding, reshape bool) (pool []Member, replaced []Loss) {
	var devices []*device
	at := map[string]*device{}
	for i := range gpus {
		g := &gpus[i]
		if at[g.PCI] == nil {
			at[g.PCI] = &device{number: -1}
			devices = append(devices, at[g.PCI])
		}
		at[g.PCI].entries = append(at[g.PCI].entries, g)
	}
	members := keptMembers(bindings)
	found, used := matchDevices(devices, members), map[int]bool{}
	for _, m := range members { // including missing ones
		used[m.GPU] = true
	}
	for i, d := range devices {
		if d.number < 0 {
			d.number = i
			if used[i] {
				d.number = nextFree(used)
			}
			used[d.number] = true
		}
	}
	for _, m := range members {
		if d := found[m.card()]; d != nil {
			d.kept++
		}
	}

	var distinct []Member
	twice := false
	for _, m := range members {
		if at := slices.IndexFunc(distinct, func(s Member) bool { return overlap(s, m) }); at >= 0 {
			if !reshape && distinct[at].slot != m.slot {
				twice, m.twice = true, true
				m.lost = fmt.Sprintf("%s is also in slot %s; run sudo kbnode install to keep it only there, or fix %s", m.describe(), SlotName(distinct[at].slot), BindingsPath)
				pool = append(pool, m)
			}
			continue
		}
		distinct = append(distinct, m)
		d := found[m.card()]
		if d == nil {
			pool = append(pool, m)
			continue
		}
		if g := d.entries[0]; m.UUID != "" && g.UUID != "" && !strings.EqualFold(m.UUID, g.UUID) {
			replaced = append(replaced, Loss{m.slot, m, fmt.Sprintf("GPU %s at %s was replaced by %s", m.UUID, m.PCI, g.UUID)})
		}
		m = d.find(m)
		if m.lost != "" {
			d.lost = append(d.lost, m)
		} else {
			d.has = append(d.has, m)
		}
	}
	for _, d := range devices {
		fresh := slices.DeleteFunc(d.offers(), func(m Member) bool {
			return slices.ContainsFunc(d.has, func(k Member) bool { return samePart(k, m) })
		})
		switch {
		case d.sick() != nil && len(d.has) > 0, d.unread():
			fresh = nil // it does not report how it is divided
		case twice:
			fresh = nil // it may belong to the slot that has another slot's member
		case len(d.lost) == 0:
		case reshape && slices.ContainsFunc(fresh, func(m Member) bool { return m.lost == "" }):
			d.lost = nil
		default:
			fresh = nil // a kept slot has their place
		}
		for i := range fresh {
			fresh[i].later = !reshape && fresh[i].MIG != nil && len(d.has) > 0
		}
		pool = slices.Concat(pool, d.has, d.lost, fresh)
	}
	slices.SortStableFunc(pool, compareMembers)
	giveNodes(pool)
	return pool, replaced
}

// card identifies the GPU of a member as it was kept. The address alone does not: a
// GPU that moved may have the address of a missing one.
func (m Member) card() [2]string { return [2]string{m.UUID, m.PCI} }

// keptMembers returns what slots have kept, in their order. GPUs that were kept with the same
// number get different ones.
func keptMembers(bindings []Binding) []Member {
	var members []Member
	used := map[int]bool{}
	for _, b := range bindings {
		for _, m := range b.Members() {
			m.slot, used[m.GPU] = b.Slot, true
			members = append(members, m)
		}
	}
	numbers, given := map[[2]string]int{}, map[int]bool{}
	for i := range members {
		m := &members[i]
		k, ok := numbers[m.card()]
		if !ok {
			k = m.GPU
			if given[k] || k < 0 {
				k = nextFree(used)
			}
			used[k], given[k], numbers[m.card()] = true, true, k
		}
		m.GPU = k
	}
	return members
}

// matchDevices finds the device of each card that was kept: the GPU with its UUID, else
// the one at its address.
func matchDevices(devices []*device, kept []Member) map[[2]string]*device {
	found := map[[2]string]*device{}
	match := func(same func(m Member, g *inventory.GPU) bool) {
		for _, m := range kept {
			i := slices.IndexFunc(devices, func(d *device) bool { return d.number < 0 && d.entries[0].Vendor == m.Vendor && same(m, d.entries[0]) })
			if i >= 0 && found[m.card()] == nil {
				devices[i].number, found[m.card()] = m.GPU, devices[i]
			}
		}
	}
	match(func(m Member, g *inventory.GPU) bool { return m.UUID != "" && strings.EqualFold(g.UUID, m.UUID) })
	match(func(m Member, g *inventory.GPU) bool { return strings.EqualFold(g.PCI, m.PCI) })
	return found
}

// find fills in a kept member with what its device has in its place.
func (d *device) find(u Member) Member {
	old := u
	if g := d.sick(); g != nil {
		u.gpu, u.UUID, u.PCI = g, cmp.Or(g.UUID, old.UUID), g.PCI
		return u
	}
	for _, now := range d.offers() {
		if now.lost == "" && samePart(old, now) && (old.Part() == "" || !d.unread() || len(d.entries) >= d.kept || old.MIG != nil) {
			now.slot = u.slot
			now.keep(old)
			return now
		}
	}
	g := d.entries[0]
	u.gpu = g
	if d.unread() {
		return recall(u)
	}
	u.UUID, u.PCI = cmp.Or(g.UUID, old.UUID), g.PCI // as the GPU's other parts, or it would count as another card
	name := cmp.Or(g.UUID, g.PCI)
	switch {
	case old.MIG != nil:
		u.lost = old.describe() + " is missing; create it again, or run sudo kbnode install to make slots from what there is"
	case g.Vendor == "amd":
		u.lost = fmt.Sprintf("GPU %s is in %s mode and was in %s; set it back, or run sudo kbnode install to make slots from what there is",
			name, cmp.Or(g.ComputePartition, "another"), old.Mode)
		if old.Mode == "" || old.Mode == g.ComputePartition {
			u.lost = fmt.Sprintf("GPU %s has no partition %d; set its mode back, or run sudo kbnode install to make slots from what there is", name, old.Partition)
		}
	case len(g.MIG) > 0:
		u.lost = fmt.Sprintf("GPU %s is in MIG mode now; turn it off with sudo nvidia-smi -i %s -mig 0, or run sudo kbnode install to make slots from its instances", name, name)
	default:
		u.lost = withoutInstances(g)
	}
	return u
}

// Loss is a member of a slot that the machine no longer has.
type Loss struct {
	Slot int
	Member
	Why string // what the machine has in its place, and what to type; "" if the GPU is missing
}

// Losses returns what slots have kept and cannot use: GPUs that are missing, and
// parts of GPUs that are now divided in another way. replaced are GPUs whose place
// another GPU has taken.
func Losses(gpus []inventory.GPU, bindings []Binding) (lost, replaced []Loss) {
	pool, replaced := findMembers(gpus, bindings, false)
	for _, u := range pool {
		if u.slot >= 0 && (u.gpu == nil || u.lost != "") {
			lost = append(lost, Loss{u.slot, u, u.lost})
		}
	}
	return lost, replaced
}

func withoutInstances(g *inventory.GPU) string {
	name := cmp.Or(g.UUID, g.PCI)
	return fmt.Sprintf("GPU %s is in MIG mode and has no instances; create some with nvidia-smi mig -i %s -cgi, or turn it off with sudo nvidia-smi -i %s -mig 0", name, name, name)
}

// offers returns what a device has for slots: its MIG instances, its
// partitions, or the GPU as a whole.
func (d *device) offers() []Member {
	var out []Member
	for _, g := range d.entries {
		u := Member{
			GPU: d.number, UUID: g.UUID, PCI: g.PCI, Vendor: g.Vendor, Model: g.Model,
			Partition: g.Partition, Mode: g.ComputePartition, NUMANode: g.NUMANode, MemoryNode: g.MemoryNode,
			Arch: g.Arch, Memory: g.MemoryBytes, gpu: g, slot: -1,
		}
		if g.MIGMode != "on" {
			out = append(out, u)
			continue
		}
		if len(g.MIG) == 0 {
			u.lost = withoutInstances(g)
			out = append(out, u)
		}
		for i, in := range g.MIG {
			u.mig, u.Memory = &g.MIG[i], in.MemoryBytes
			u.MIG = &Placement{Profile: cmp.Or(in.Profile, fmt.Sprintf("%dg", in.Slices)), Start: in.Start, Size: in.MemorySlices, Compute: in.ComputeInstance}
			u.lost = ""
			if in.Start < 0 {
				u.lost = fmt.Sprintf("the driver does not report where in GPU %s its instance %s is; update the driver", cmp.Or(g.UUID, g.PCI), in.UUID)
			}
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, compareMembers)
	return out
}

// samePart reports whether two members of one device are the same part of it.
// An unknown mode matches any.
func samePart(a, b Member) bool {
	if a.MIG != nil || b.MIG != nil {
		return a.MIG != nil && b.MIG != nil && *a.MIG == *b.MIG
	}
	return a.Partition == b.Partition && (a.Mode == b.Mode || a.Mode == "" || b.Mode == "")
}

func compareMembers(a, b Member) int {
	p, q := cmp.Or(a.MIG, &Placement{}), cmp.Or(b.MIG, &Placement{})
	return cmp.Or(a.GPU-b.GPU, a.Partition-b.Partition, p.Start-q.Start, p.Compute-q.Compute, cmp.Compare(a.PCI, b.PCI))
}

func nextFree(used map[int]bool) int {
	k := 0
	for used[k] {
		k++
	}
	return k
}
