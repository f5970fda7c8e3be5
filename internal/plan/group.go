package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// group combines members into slots: first those that the configuration names, then
// as many whole GPUs as a slot is to have, neighbors first. Slots that already have
// such a group keep it. If settled, all slots keep what they have, and new GPUs that
// make no whole group are left over.
func group(members []Member, cfg config.Config, bindings []Binding, settled bool) (groups [][]Member, left []Member, err error) {
	g := grouping{members: members, taken: make([]bool, len(members))}
	if settled { // slots have the groups of the configuration
		g.keep(bindings)
	} else if err := g.takeNamed(cfg.Groups); err != nil {
		return nil, nil, err
	}
	if err := g.fill(max(1, cfg.GPUsPerSlot), bindings, settled); err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(g.groups, func(a, b []Member) int { return compareMembers(a[0], b[0]) })
	return g.groups, g.left, nil
}

// grouping is members on their way into groups.
type grouping struct {
	members []Member
	taken   []bool // by index in members
	groups  [][]Member
	left    []Member // in no group
}

// take makes a group of members, by index.
func (g *grouping) take(group []int) {
	var list []Member
	for _, i := range group {
		g.taken[i] = true
		list = append(list, g.members[i])
	}
	g.groups = append(g.groups, list)
}

// keptBy returns those of some members that a slot has kept, by index.
func (g *grouping) keptBy(slot int, among []int) []int {
	return only(among, func(i int) bool { return g.members[i].slot == slot })
}

// keep takes what slots have.
func (g *grouping) keep(bindings []Binding) {
	for _, b := range bindings {
		group := g.keptBy(b.Slot, g.free())
		if len(group) == 0 {
			continue
		}
		if err := oneKind(g.members, group); err != nil && len(group) > 1 { // another kind replaced a card
			first := &g.members[group[0]]
			first.lost = cmp.Or(first.lost, err.Error())
		}
		g.take(group)
	}
}

// free returns the members that are in no group, by index.
func (g *grouping) free() (list []int) {
	for i, taken := range g.taken {
		if !taken {
			list = append(list, i)
		}
	}
	return list
}

// takeNamed takes the groups that the configuration names.
func (g *grouping) takeNamed(groups config.Groups) error {
	for _, names := range groups {
		var group []int
		for _, name := range names {
			found, err := named(g.members, name)
			if err != nil {
				return fmt.Errorf("groups: %w; list some of them", err)
			}
			for _, i := range found {
				if g.taken[i] || slices.Contains(group, i) {
					return fmt.Errorf("groups: GPU %s is listed twice; list each GPU once", name)
				}
				group = append(group, i)
			}
		}
		slices.Sort(group)
		if err := oneKind(g.members, group); err != nil {
			return fmt.Errorf("groups: %w", err)
		}
		g.take(group)
	}
	return nil
}

// fill takes what is left: parts of GPUs one by one, and whole GPUs of each model in groups.
func (g *grouping) fill(size int, bindings []Binding, settled bool) error {
	kinds := map[string][]int{} // whole GPUs to combine, by model
	var models []string
	for _, i := range g.free() {
		u := g.members[i]
		model := u.Vendor + u.Model
		switch {
		case size == 1 || u.Part() != "":
			g.take([]int{i})
			continue
		case kinds[model] == nil:
			models = append(models, model)
		}
		kinds[model] = append(kinds[model], i)
	}
	for _, model := range models {
		free := kinds[model]
		whole := len(free) - len(free)%size
		if whole < len(free) && !settled {
			return fmt.Errorf("gpus_per_slot: %s cannot be divided into groups of %d; write a number that divides them (--gpus-per-slot), choose others with --gpus, or name groups in %s",
				text.Count(len(free), "GPU"), size, ConfigPath)
		}
		for _, i := range free[whole:] {
			g.left = append(g.left, g.members[i])
		}
		g.combine(free[:whole], size, bindings)
	}
	return nil
}

// combine takes groups of a size, first those that slots have kept, then neighbors.
func (g *grouping) combine(free []int, size int, bindings []Binding) {
	for _, b := range bindings {
		if group := g.keptBy(b.Slot, free); len(group) == size && len(b.Members()) == size {
			g.take(group)
		}
	}
	for {
		free = only(free, func(i int) bool { return !g.taken[i] })
		if len(free) == 0 {
			return
		}
		g.take(nearest(g.members, free, size))
	}
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
