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
// such a group keep it. GPUs that were added to a running node, or are new beside
// a missing one, and make no whole group are left over.
func group(members []Member, cfg config.Config, bindings []Binding, running bool) (groups [][]Member, left []Member, err error) {
	taken := make([]bool, len(members))
	pick := func(group []int) (g []Member) {
		for _, i := range group {
			g = append(g, members[i])
		}
		return g
	}
	take := func(group []int) {
		for _, i := range group {
			taken[i] = true
		}
		groups = append(groups, pick(group))
	}
	// A group whose slot has kept it is parked if one of its cards was replaced by another kind.
	fits := func(group []int) error {
		err := oneKind(pick(group))
		if err != nil && running && kept(bindings, pick(group)) {
			members[group[0]].lost, err = cmp.Or(members[group[0]].lost, err.Error()), nil
		}
		return err
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
		if err := fits(group); err != nil {
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
	for _, b := range bindings {
		var group []int
		for i, u := range members {
			if !taken[i] && u.slot == b.Slot && u.Part() == "" {
				group = append(group, i)
			}
		}
		if len(group) == size && len(b.Members()) == size && fits(group) == nil {
			take(group)
		}
	}
	for _, model := range models {
		all := len(kinds[model])
		free := slices.DeleteFunc(kinds[model], func(i int) bool { return taken[i] })
		var fresh []int // which the operator did not choose, or beside a missing one, whose slot keeps its place
		if running && len(cfg.GPUs.List) == 0 && cfg.GPUCount == 0 || slices.ContainsFunc(members, func(u Member) bool { return u.gpu == nil }) {
			fresh = slices.DeleteFunc(slices.Clone(free), func(i int) bool { return members[i].bound() })
		}
		rest := len(free) % size
		if rest > len(fresh) {
			return nil, nil, fmt.Errorf("gpus_per_slot: %s cannot be divided into groups of %d; write a number that divides them (--gpus-per-slot), choose others with --gpus, or name groups in %s",
				text.Count(all, "GPU"), size, ConfigPath)
		}
		for _, i := range fresh[len(fresh)-rest:] {
			taken[i] = true
			left = append(left, members[i])
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
func oneKind(group []Member) error {
	first := group[0]
	for _, u := range group {
		switch {
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
