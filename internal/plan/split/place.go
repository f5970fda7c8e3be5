package split

import (
	"cmp"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// findHomes finds each GPU's own packages, and how far away the others are.
func (s *splitter) findHomes() {
	present := map[int]bool{} // NUMA nodes with CPUs or memory
	for _, n := range s.in.Memory.Nodes {
		present[n.ID] = true
	}
	for _, c := range s.in.CPU.List {
		present[c.NUMANode] = true
	}
	var unknown, moved []int
	for i := range s.in.GPUs {
		g := &s.in.GPUs[i]
		if !present[g.NUMANode] {
			g.NUMANode = -1
		}
		away := make([]int, len(s.packages))
		for p := range away {
			switch nodes := s.packages[p].nodes; {
			case g.NUMANode < 0 || slices.Contains(nodes, g.NUMANode):
			default:
				away[p] = s.distance(g.NUMANode, slices.MinFunc(nodes, func(a, b int) int {
					return s.distance(g.NUMANode, a) - s.distance(g.NUMANode, b)
				}))
			}
		}
		nearest := slices.Min(away)
		switch {
		case g.None:
		case g.NUMANode < 0:
			unknown = append(unknown, i)
		case nearest == 0:
		case s.setAdjacent(g.NUMANode, away):
		default:
			moved = append(moved, i)
			for p := range away {
				if away[p] == nearest {
					away[p] = 0
				}
			}
		}
		s.away = append(s.away, away)
	}
	if len(unknown) > 0 && (len(s.packages) > 1 || len(s.ram) > 1) {
		s.warn("the firmware does not report the NUMA node of the GPU of %s; spread evenly over %s",
			s.names(unknown), text.Count(len(s.packages), s.packageWord()))
	}
	if len(moved) > 0 {
		s.warn("the NUMA node of the GPU of %s has no CPUs for slots; they come from the nearest %s", s.names(moved), s.packageWord())
	}
}

// setAdjacent reports whether a package has CPUs of the node, although none for slots, and sets its
// distance to 0.
func (s *splitter) setAdjacent(node int, away []int) (found bool) {
	for i, p := range s.packages {
		if !s.byNode && slices.ContainsFunc(s.in.CPU.List, func(c inventory.LogicalCPU) bool { return c.NUMANode == node && c.Package == p.id }) {
			away[i], found = 0, true
		}
	}
	return found
}

// seat chooses a package for the block of k cores of each GPU: one of its own if possible, or
// else the nearest with room, and the emptiest of several. It returns nil if there is no room.
func (s *splitter) seat(k, keep int) []int {
	var seats, fill []int // package of each seat, and how full that is with it
	for p, n := range s.room(k, keep) {
		for i := range min(n, len(s.in.GPUs)) {
			seats = append(seats, p)
			fill = append(fill, (2*i+1)*s.total/len(s.packages[p].cores))
		}
	}
	if len(seats) < len(s.in.GPUs) {
		return nil
	}
	far := make([][]int, len(s.in.GPUs))
	for i, away := range s.away {
		for _, p := range seats {
			far[i] = append(far[i], away[p])
		}
	}
	where := assign(far, fill)
	for i, j := range where {
		where[i] = seats[j]
	}
	return where
}

// assignPackages puts every GPU on a package, and warns if that is not one of its own.
func (s *splitter) assignPackages(k, keep int) {
	s.where = s.seat(k, keep)
	var remote []int
	for gpu, p := range s.where {
		if s.away[gpu][p] > 0 {
			remote = append(remote, gpu)
		}
	}
	if len(remote) > 0 {
		s.warn("%s: the CPUs are on a different %s than the GPU, which slows copies to it, because there are too few cores near it; choose fewer GPUs with --gpus (gpus) or lower cpus_per_slot (--cpus-per-slot)",
			s.names(remote), s.packageWord())
	}
}

// assignBlocks gives the slots of one package a block of k cores each, as near to
// their GPUs as possible.
func (s *splitter) assignBlocks(p *cpuPackage, slots []int, k int) {
	blocks, _ := p.shape(len(slots), k, k)
	// Equally near blocks are taken from all nodes in turn, which spreads the
	// memory, and from a node's end, which leaves its first cores (the
	// machine's CPU 0) to the system.
	rank := make([]int, len(blocks))
	onNode := map[[3]int]int{}
	for j := len(blocks) - 1; j >= 0; j-- {
		blocks[j] = blocks[j][len(blocks[j])-k:]
		node := nodeKey(blocks[j][0])
		rank[j] = onNode[node]
		onNode[node]++
	}
	far := make([][]int, len(slots))
	for i, slot := range slots {
		far[i] = make([]int, len(blocks))
		for j, cores := range blocks {
			for _, c := range cores {
				if node := s.in.GPUs[slot].NUMANode; node >= 0 {
					far[i][j] += s.distance(node, c.node)
				}
			}
		}
	}
	for i, j := range assign(far, rank) {
		s.cores[slots[i]] = blocks[j]
	}
}

// assign gives each row a column of its own, the nearest that is left, of several that of the
// lowest rank: first to rows that can have one of their nearest, those with the fewest first,
// then to the others. Then rows swap columns as long as that brings them nearer in all, or puts
// them in order. There are at least as many columns as rows.
func assign(far [][]int, rank []int) []int {
	order, nearest, choices := make([]int, len(far)), make([]int, len(far)), make([]int, len(far))
	for i, row := range far {
		order[i], nearest[i] = i, slices.Min(row)
		for _, n := range row {
			if n == nearest[i] {
				choices[i]++
			}
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return choices[a] - choices[b] })
	column, taken := slices.Repeat([]int{-1}, len(far)), make([]bool, len(rank))
	for _, others := range []bool{false, true} {
		for _, i := range order {
			best := -1
			for j := range rank {
				if !taken[j] && (others || far[i][j] == nearest[i]) && (best < 0 || cmp.Or(far[i][j]-far[i][best], rank[j]-rank[best]) < 0) {
					best = j
				}
			}
			if column[i] < 0 && best >= 0 {
				column[i], taken[best] = best, true
			}
		}
	}
	for swapped := true; swapped; {
		swapped = false
		for i := range far {
			for j := range i {
				a, b := column[i], column[j]
				gain := far[i][a] + far[j][b] - far[i][b] - far[j][a]
				if gain > 0 || gain == 0 && a < b {
					column[i], column[j], swapped = b, a, true
				}
			}
		}
	}
	return column
}

// shape cuts a package into at least n blocks of at least size cores, where size is k
// if possible, and otherwise at least least. In order of preference: separate level-3
// caches, blocks within one cache, blocks within one NUMA node, blocks that straddle.
// Separate caches may cost cores, but not leave a quarter of the package idle while slots
// have fewer than the vendors' guide recommends.
func (p *cpuPackage) shape(n, k, least int) (blocks [][]physCore, size int) {
	caches := runs(p.cores, cacheKey)
	best, largest := 0, 0
	for _, c := range caches {
		largest = max(largest, len(c))
	}
	// Start with the fewest caches that could hold k cores, or with as many as there are.
	fewest := max(1, min((k+largest-1)/largest, len(caches)/n))
	for m := fewest; m <= len(caches)/n && best < k; m++ {
		groups := groupCaches(caches, m, n)
		var sizes []int
		for _, g := range groups {
			sizes = append(sizes, len(g))
		}
		slices.Sort(sizes)
		if got := min(k, sizes[len(sizes)-n]); got > best {
			best, blocks = got, groups
		}
	}
	if idle := len(p.cores) - best*n; best >= least && (best >= min(k, advisedCores) || 4*idle < len(p.cores)) {
		return slices.DeleteFunc(blocks, func(b []physCore) bool { return len(b) < best }), best
	}
	if blocks := carveEach(caches, k); len(blocks) >= n {
		return blocks, k
	}
	for size := k; size >= least; size-- {
		if blocks := carveEach(runs(p.cores, nodeKey), size); len(blocks) >= n {
			return blocks, size
		}
	}
	return carve(p.cores, k), k
}

func nodeKey(c physCore) [3]int  { return [3]int{c.node, c.socket} }
func cacheKey(c physCore) [3]int { return [3]int{c.node, c.socket, c.l3} }

// groupCaches joins neighboring caches, m to a group: within their nodes if
// that makes n groups, else across.
func groupCaches(caches [][]physCore, m, n int) [][]physCore {
	var out [][]physCore
	join := func(list [][]physCore) {
		for i := len(list) % m; i < len(list); i += m {
			out = append(out, slices.Concat(list[i:i+m]...))
		}
	}
	for _, node := range runs(caches, func(c []physCore) [3]int { return nodeKey(c[0]) }) {
		join(node)
	}
	if len(out) < n {
		out = nil
		join(caches)
	}
	return out
}

func carveEach(lists [][]physCore, k int) [][]physCore {
	var out [][]physCore
	for _, l := range lists {
		out = append(out, carve(l, k)...)
	}
	return out
}

// carve cuts as many chunks of at least k cores as it can from the end of a
// list, and never splits a pair.
func carve(cores []physCore, k int) [][]physCore {
	var out [][]physCore
	for end := len(cores); end >= k; {
		start := end - k
		for start > 0 && cores[start-1].pair == cores[start].pair {
			start--
		}
		out = append(out, cores[start:end:end])
		end = start
	}
	slices.Reverse(out)
	return out
}
