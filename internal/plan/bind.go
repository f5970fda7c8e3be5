package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

// bound is a slot's binding together with its GPU as it is now.
type bound struct {
	Binding
	gpu    *inventory.GPU // nil while the GPU is away
	parked string         // why the slot takes no jobs
}

// bind gives every chosen GPU a slot. A slot keeps its GPU as long as the
// operator does not choose otherwise: a GPU that is away leaves its slot parked
// and every other slot as it was.
func bind(gpus []inventory.GPU, want config.GPUs, kept []Binding) ([]bound, []string, error) {
	if len(gpus) == 0 && len(kept) == 0 {
		return nil, nil, fmt.Errorf("this machine has no GPU that kbnode can see; check that the driver is loaded (nvidia-smi, or ls /sys/class/kfd for AMD), then run kbnode inventory")
	}
	var slots []bound
	var warnings []string
	taken := make([]bool, len(gpus))
	for _, b := range kept {
		s := bound{Binding: b}
		if i := findGPU(gpus, taken, b); i >= 0 {
			taken[i] = true
			s.gpu = &gpus[i]
			if s.UUID != "" && s.gpu.UUID != "" && !strings.EqualFold(s.UUID, s.gpu.UUID) {
				warnings = append(warnings, fmt.Sprintf("slot %s: GPU %s at %s was replaced by %s", SlotName(b.Slot), b.UUID, b.PCI, s.gpu.UUID))
			}
			s.Binding = bindingOf(b.Slot, *s.gpu, b)
		}
		slots = append(slots, s)
	}
	used := map[int]bool{}
	for _, s := range slots {
		used[s.Slot] = true
	}
	for i, g := range gpus {
		if taken[i] {
			continue
		}
		k := i
		if used[k] {
			k = nextFree(used)
		}
		used[k] = true
		slots = append(slots, bound{Binding: bindingOf(k, g, Binding{}), gpu: &gpus[i]})
	}
	slices.SortFunc(slots, func(a, b bound) int { return a.Slot - b.Slot })
	slots, err := choose(slots, want)
	if err != nil {
		return nil, nil, err
	}
	for i := range slots {
		slots[i].parked = parkedWhy(slots[i])
		if slots[i].parked != "" {
			warnings = append(warnings, fmt.Sprintf("slot %s is parked: %s", SlotName(slots[i].Slot), slots[i].parked))
		}
	}
	return slots, warnings, nil
}

func nextFree(used map[int]bool) int {
	k := 0
	for used[k] {
		k++
	}
	return k
}

// findGPU finds a binding's GPU: by UUID, else, where one of the two UUIDs is
// unknown or the old one is nowhere, by PCI address.
func findGPU(gpus []inventory.GPU, taken []bool, b Binding) int {
	if b.UUID != "" {
		for i, g := range gpus {
			if !taken[i] && strings.EqualFold(g.UUID, b.UUID) && g.Partition == b.Partition {
				return i
			}
		}
	}
	for i, g := range gpus {
		if !taken[i] && g.Vendor == b.Vendor && strings.EqualFold(g.PCI, b.PCI) && g.Partition == b.Partition {
			return i
		}
	}
	return -1
}

// bindingOf describes a GPU, keeping what was known of it where it does not
// tell any more.
func bindingOf(slot int, g inventory.GPU, old Binding) Binding {
	b := Binding{
		Slot: slot, UUID: g.UUID, PCI: g.PCI, Vendor: g.Vendor, Model: g.Model,
		Partition: g.Partition, NUMANode: g.NUMANode, MemoryNode: g.MemoryNode,
	}
	if b.UUID == "" {
		b.UUID = old.UUID
	}
	if old.Vendor != "" && !g.Healthy {
		b.Model, b.NUMANode, b.MemoryNode = old.Model, old.NUMANode, old.MemoryNode
	}
	return b
}

// choose keeps the slots whose GPUs the operator wants. An index means the slot
// of that number, which is the GPU's index when the slot was made: it does not
// shift when another GPU goes away.
func choose(slots []bound, want config.GPUs) ([]bound, error) {
	if want.Count > 0 {
		if want.Count > len(slots) {
			return nil, fmt.Errorf("%d GPUs are asked for and this machine has %d; write --gpus all or name fewer", want.Count, len(slots))
		}
		return slots[:want.Count], nil
	}
	if len(want.List) == 0 {
		return slots, nil
	}
	var chosen []bound
	for _, name := range want.List {
		i := slices.IndexFunc(slots, func(s bound) bool {
			if k, err := strconv.Atoi(name); err == nil {
				return s.Slot == k
			}
			return strings.EqualFold(s.UUID, name) || strings.EqualFold(s.PCI, name) || strings.EqualFold(strings.TrimPrefix(s.PCI, "0000:"), name)
		})
		if i < 0 {
			return nil, fmt.Errorf("GPU %s does not exist: this machine has %s; name one of them with --gpus", name, slotList(slots))
		}
		if slices.ContainsFunc(chosen, func(s bound) bool { return s.Slot == slots[i].Slot }) {
			return nil, fmt.Errorf("GPU %s is chosen twice; name each GPU once in --gpus", name)
		}
		chosen = append(chosen, slots[i])
	}
	slices.SortFunc(chosen, func(a, b bound) int { return a.Slot - b.Slot })
	return chosen, nil
}

func slotList(slots []bound) string {
	if n := len(slots); n > 1 && slots[n-1].Slot == n-1 {
		return fmt.Sprintf("GPUs 0 to %d", n-1)
	}
	names := make([]string, len(slots))
	for i, s := range slots {
		names[i] = strconv.Itoa(s.Slot)
	}
	return "GPU " + strings.Join(names, ", ")
}

func parkedWhy(s bound) string {
	switch {
	case s.gpu == nil:
		return fmt.Sprintf("GPU %s at %s is missing", s.UUID, s.PCI)
	case !s.gpu.Healthy:
		return fmt.Sprintf("GPU at %s does not answer: %s", s.PCI, s.gpu.Error)
	case s.gpu.MIGMode == "on":
		return fmt.Sprintf("GPU %s is in MIG mode, and a slot is a whole GPU; turn it off with nvidia-smi -i %s -mig 0", s.UUID, s.PCI)
	}
	return ""
}
