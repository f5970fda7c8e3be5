package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/text"
)

// group combines members into slots: first those that the configuration names, then
// as many whole GPUs as a slot is to have, neighbors first. Slots that already have
// such a group keep it. If settled, all slots keep what they have, and new GPUs that
// make no whole group are left over.
func group(members []Member, cfg config.Config, bindings []Binding, settled bool) (groups [][]Member, left []Member, err error) {
	taken := make([]bool, len(members))
	take := func(group []int) {
		var g []Member
		for _, i := range group {
			taken[i] = true
			g = append(g, members[i])
		}
		groups = append(groups, g)
	}
	if settled {
		for _, b := range bindings {
			var group []int
			for i, u := range members {
				if u.slot == b.Slot {
					group = append(group, i)
				}
			}
			if err := oneKind(members, group); err != nil && len(group) > 1 { // another kind replaced a card
				members[group[0]].lost = cmp.Or(members[group[0]].lost, err.Error())
			}
			if len(group) > 0 {
				take(group)
			}
		}
		cfg.Groups = nil // it has them
	}
	for _, names := range cfg.Groups {
		var group []int
		for _, name := range names {
			found, err := named(members, name)
			if err != nil {
				return nil, nil, fmt.Errorf("groups: %w; list some of them", err)
			}
			for _, i := range found {
				if taken[i] || slices.Contains(group, i) {
					return nil, nil, fmt.Errorf("groups: GPU %s is listed twice; list each GPU once", name)
				}
				group = append(group, i)
			}
		}
		slices.Sort(group)
		if err := oneKind(members, group); err != nil {
			return nil, nil, fmt.Errorf("groups: %w", err)
		}
		take(group)
	}

	size := max(1, cfg.GPUsPerSlot)
	kinds := map[string][]int{} // whole GPUs to combine, by model
	var models []string
	for i, u := range members {
		switch model := u.Vendor + u.Model; {
		case taken[i]:
		case size == 1 || u.Part() != "":
			take([]int{i})
		default:
			if kinds[model] == nil {
				models = append(models, model)
			}
			kinds[model] = append(kinds[model], i)
		}
	}
	for _, model := range models {
		free := kinds[model]
		rest := len(free) % size
		if rest > 0 && !settled {
			return nil, nil, fmt.Errorf("gpus_per_slot: %s cannot be divided into groups of %d; write a number that divides them (--gpus-per-slot), choose others with --gpus, or name groups in %s",
				text.Count(len(free), "GPU"), size, ConfigPath)
		}
		for _, i := range free[len(free)-rest:] {
			taken[i] = true
			left = append(left, members[i])
		}
		for _, b := range bindings {
			var group []int
			for _, i := range free {
				if members[i].slot == b.Slot {
					group = append(group, i)
				}
			}
			if len(group) == size && len(b.Members()) == size {
				take(group)
			}
		}
		for {
			free = slices.DeleteFunc(free, func(i int) bool { return taken[i] })
			if len(free) == 0 {
				break
			}
			take(nearest(members, free, size))
		}
	}
	slices.SortStableFunc(groups, func(a, b []Member) int { return compareMembers(a[0], b[0]) })
	return groups, left, nil
}

// oneKind returns an error for a group whose members cannot compute together.
func oneKind(members []Member, group []int) error {
	for _, i := range group {
		switch first, u := members[group[0]], members[i]; {
		case u.MIG != nil:
			return fmt.Errorf("GPU %d is in MIG mode, and a program can use at most one instance; leave it out of groups, or turn MIG off", u.GPU)
		case u.Vendor != first.Vendor || u.Model != first.Model || u.Part() != first.Part():
			return fmt.Errorf("GPU %d is %s and GPU %d is %s; group GPUs of the same kind", first.GPU, title(first), u.GPU, title(u))
		}
	}
	return nil
}

// nearest chooses the first free GPU and those nearest to it and to each other:
// by direct links, then on the same NUMA node, then by number.
func nearest(members []Member, free []int, size int) []int {
	group := []int{free[0]}
	for len(group) < size {
		near := func(i int) (links, nodes int) {
			for _, j := range group {
				a, b := members[i], members[j]
				if a.gpu != nil && slices.Contains(a.gpu.Links, b.PCI) || b.gpu != nil && slices.Contains(b.gpu.Links, a.PCI) {
					links++
				}
				if a.NUMANode == b.NUMANode {
					nodes++
				}
			}
			return links, nodes
		}
		rest := slices.DeleteFunc(slices.Clone(free), func(i int) bool { return slices.Contains(group, i) })
		group = append(group, slices.MaxFunc(rest, func(a, b int) int {
			linksA, nodesA := near(a)
			linksB, nodesB := near(b)
			return cmp.Or(linksA-linksB, nodesA-nodesB, b-a)
		}))
	}
	slices.Sort(group)
	return group
}
