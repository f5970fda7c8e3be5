package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Bindings is what a machine keeps from one plan to the next, the content of BindingsPath.
type Bindings struct {
	WrittenBy string    `json:"written_by"`
	Schema    int       `json:"schema"`
	Slots     []Binding `json:"slots"` // by slot
	// Chosen is what the configuration said of which GPUs become which slots; nil if it said nothing.
	Chosen *Selection `json:"chosen,omitempty"`
	// Last is the content of LastPath, for what cannot be read now; nil if there is none.
	Last *inventory.Inventory `json:"-"`
}

// Binding is what a slot keeps.
type Binding struct {
	Slot   int      `json:"slot"`
	Member          // the first; Vendor is "" if the slot has no GPU
	Others []Member `json:"others,omitempty"`
	Last   *Last    `json:"last,omitempty"`
}

// Last is what a slot was last planned with. It keeps that while it is unknown what it should have.
type Last struct {
	CPUs        string `json:"cpus"`         // Linux list format
	MemoryNodes string `json:"memory_nodes"` // Linux list format
	MemoryBytes int64  `json:"memory_bytes"`
}

// Members returns all GPUs of the slot, or parts of GPUs.
func (b Binding) Members() []Member {
	if b.Vendor == "" {
		return nil
	}
	return append([]Member{b.Member}, b.Others...)
}

// assignment is a slot in the making: first with its Index, Name, User, GPUs and Parked.
type assignment struct {
	Slot
	members []Member // the GPUs as they are now
	last    *Last    // nil for a new slot
}

func newAssignment(k int, members []Member) assignment {
	return assignment{Slot: Slot{Index: k, Name: SlotName(k), User: UserName(k), GPUs: slotGPUs(members), Parked: parkedWhy(members)}, members: members}
}

func (a assignment) binding() Binding {
	out := Binding{Slot: a.Index}
	if len(a.members) > 0 {
		out.Member, out.Others = a.members[0], a.members[1:]
	}
	return out
}

// bind makes slots of GPUs, parts of GPUs and groups. A slot keeps what it has
// unless the operator chooses otherwise: a missing GPU parks its slot and leaves
// every other slot as it was. settled says that the configuration selects as it did
// when they were made.
func bind(gpus []inventory.GPU, cfg config.Config, bindings []Binding, reshape, settled bool) ([]assignment, []string, error) {
	if cfg.GPUs.None {
		slots := make([]assignment, cfg.Slots)
		for k := range slots {
			slots[k] = newAssignment(k, nil)
		}
		return slots, nil, nil
	}
	if cfg.Slots > 0 {
		return nil, nil, fmt.Errorf("slots: %d is set, but the GPUs decide how many slots there are; also write gpus: none (--gpus none) for slots without a GPU, or leave slots out", cfg.Slots)
	}
	bindings = slices.DeleteFunc(slices.Clone(bindings), func(b Binding) bool { return b.Vendor == "" })
	if len(gpus) == 0 && len(bindings) == 0 {
		return nil, nil, errors.New("this machine has no GPU that kbnode can see; check that the driver is loaded (nvidia-smi, or ls /sys/class/kfd for AMD), then run kbnode inventory; for slots without a GPU, use --gpus none --slots N")
	}
	pool, replaced := findMembers(gpus, bindings, reshape)
	var warnings []string
	for _, g := range undivided(gpus, pool) {
		why := fmt.Sprintf("the partitioning of GPU %s could not be read", cmp.Or(g.UUID, g.PCI))
		if len(bindings) == 0 {
			return nil, nil, errors.New(why + ", so it cannot become a slot; see kbnode inventory, and install again when it can be read")
		}
		warnings = append(warnings, why+"; it becomes a slot when it can be read")
	}
	for _, r := range replaced {
		warnings = append(warnings, "slot "+SlotName(r.Slot)+": "+r.Why)
	}
	chosen, err := choose(pool, cfg.GPUs, int(cfg.GPUCount))
	if settled && (len(cfg.GPUs.List) > 0 || cfg.GPUCount > 0) {
		chosen, err = keepSelection(pool, chosen, len(cfg.GPUs.List) > 0), nil
	}
	if err != nil {
		return nil, nil, err
	}
	chosen = slices.DeleteFunc(slices.Clone(chosen), func(m Member) bool {
		if m.later {
			warnings = append(warnings, m.describe()+" is in no slot; run sudo kbnode install to make one of it")
		}
		return m.later
	})
	groups, left, err := group(chosen, cfg, bindings, settled)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range left {
		warnings = append(warnings, fmt.Sprintf("%s is in no slot, because gpus_per_slot is %d; if it replaces another, move %s away and run sudo kbnode install",
			m.describe(), cfg.GPUsPerSlot, BindingsPath))
	}
	slots := number(groups, pool, bindings)
	for i, s := range slots {
		if at := slices.IndexFunc(bindings, func(b Binding) bool { return b.Slot == s.Index }); at >= 0 {
			slots[i].last = bindings[at].Last
		}
		if s.Parked != "" {
			warnings = append(warnings, s.ParkedWarning())
		}
	}
	return slots, warnings, nil
}

// choose returns the members that the operator wants. An index is a GPU's number,
// which does not shift when another GPU goes away.
func choose(pool []Member, want config.GPUs, count int) ([]Member, error) {
	chosen := pool
	if len(want.List) > 0 {
		listed := map[int]bool{}
		for _, name := range want.List {
			indices, err := named(pool, name)
			if err != nil {
				return nil, fmt.Errorf("%w; choose one of them with --gpus", err)
			}
			for _, i := range indices {
				if listed[i] {
					return nil, fmt.Errorf("GPU %s is listed twice; list each GPU once in --gpus", name)
				}
				listed[i] = true
			}
			if len(indices) == 1 {
				pool[indices[0]].later = false // a part that the operator names
			}
		}
		chosen = nil
		for i, m := range pool {
			if listed[i] {
				chosen = append(chosen, m)
			}
		}
	}
	all := numbers(chosen)
	switch {
	case count == 0:
		return chosen, nil
	case !want.IsZero() && count != len(all):
		return nil, fmt.Errorf("gpu_count: %d and gpus, which lists %d, contradict each other; leave out one of them (--gpu-count, --gpus)", count, len(all))
	case count < 0 || count > len(all):
		return nil, fmt.Errorf("gpu_count: %d GPUs are requested, but this machine has %d; write at most %[2]d (--gpu-count), or leave it out for all", count, len(all))
	}
	return slices.DeleteFunc(slices.Clone(chosen), func(u Member) bool { return !slices.Contains(all[:count], u.GPU) }), nil
}

// keepSelection returns what slots have, whatever the names mean now, and what they also mean for a later install.
func keepSelection(pool, chosen []Member, listed bool) []Member {
	kept := only(pool, Member.bound)
	for _, m := range chosen {
		if !m.bound() && (listed || m.later) {
			m.later = true
			kept = append(kept, m)
		}
	}
	slices.SortStableFunc(kept, compareMembers)
	return kept
}

// only returns the elements of a list for which is returns true.
func only[T any](list []T, is func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !is(v) })
}

// named returns the indices that a name refers to: all parts of a GPU, or the one
// whose number follows a colon.
func named(pool []Member, name string) ([]int, error) {
	gpu, part, parted := name, "", false
	if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.Contains(name[i:], ".") {
		gpu, part, parted = name[:i], name[i+1:], true
	}
	if pci, ok := inventory.PCIAddress(gpu); ok { // nvidia-smi prints eight digits of the domain
		gpu = pci
	}
	var matches []int
	for i, u := range pool {
		if k, err := strconv.Atoi(gpu); err == nil && u.GPU == k || err != nil &&
			(strings.EqualFold(u.UUID, gpu) || strings.EqualFold(u.PCI, gpu) || strings.EqualFold(strings.TrimPrefix(u.PCI, "0000:"), gpu)) {
			matches = append(matches, i)
		}
	}
	if len(matches) == 0 {
		return nil, fmt.Errorf("GPU %s does not exist: this machine has %s", gpu, numberList(numbers(pool)))
	}
	if !parted {
		return matches, nil
	}
	if k, err := strconv.Atoi(part); err == nil && k < len(matches) && pool[matches[0]].Part() != "" {
		return matches[k : k+1], nil
	}
	return nil, fmt.Errorf("GPU %s has no part %s: it has %d", gpu, part, len(matches))
}

// numbers returns the GPU numbers in a sorted pool.
func numbers(pool []Member) []int {
	var out []int
	for _, u := range pool {
		out = append(out, u.GPU)
	}
	return slices.Compact(out)
}

func numberList(list []int) string {
	if n := len(list); n > 1 && list[n-1] == n-1 {
		return fmt.Sprintf("GPUs 0 to %d", n-1)
	}
	names := make([]string, len(list))
	for i, k := range list {
		names[i] = strconv.Itoa(k)
	}
	return "GPU " + strings.Join(names, ", ")
}

// number gives each group its slot: the one that has kept all of it, else the one
// of its first member, else that member's index in pool.
func number(groups [][]Member, pool []Member, bindings []Binding) []assignment {
	indices := make([]int, len(groups))
	used := map[int]bool{}
	for i, g := range groups {
		k := g[0].slot
		indices[i] = -1
		at := slices.IndexFunc(bindings, func(b Binding) bool { return b.Slot == k })
		if at >= 0 && len(bindings[at].Members()) == len(g) && !slices.ContainsFunc(g, func(u Member) bool { return u.slot != k }) {
			indices[i], used[k] = k, true
		}
	}
	var slots []assignment
	for i, g := range groups {
		k := indices[i]
		if k < 0 {
			k = g[0].slot
			if k < 0 || used[k] {
				k = slices.IndexFunc(pool, func(u Member) bool { return compareMembers(u, g[0]) == 0 })
			}
			if used[k] {
				k = nextFree(used)
			}
			used[k] = true
		}
		slots = append(slots, newAssignment(k, g))
	}
	slices.SortFunc(slots, func(a, b assignment) int { return a.Index - b.Index })
	return slots
}

func parkedWhy(members []Member) string {
	var why []string
	for _, u := range members {
		switch {
		case u.lost != "":
			why = append(why, u.lost)
		case u.gpu == nil:
			why = append(why, fmt.Sprintf("GPU %s at %s is missing", u.UUID, u.PCI))
		case !u.gpu.Healthy:
			why = append(why, fmt.Sprintf("GPU at %s does not answer: %s", u.PCI, u.gpu.Error))
		case u.mig != nil && !u.nodesKept && (u.mig.GPUCap < 0 || u.mig.ComputeCap < 0):
			why = append(why, fmt.Sprintf("the driver does not report the devices of %s; see /proc/driver/nvidia-caps/mig-minors", u.describe()))
		}
	}
	return strings.Join(slices.Compact(why), "; ")
}
