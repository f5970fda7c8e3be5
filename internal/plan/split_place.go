package plan

import (
	"math"
	"slices"
)

// findHomes finds each GPU's own packages, and how far away the others are.
func (s *splitter) findHomes() {
	var unknown, moved []int
	for i, g := range s.in.GPUs {
		home, away := make([]bool, len(s.packages)), make([]int, len(s.packages))
		known := g.NUMANode >= 0 && s.present[g.NUMANode]
		own, nearest := false, math.MaxInt
		for p := range s.packages {
			if !known {
				home[p] = true
				continue
			}
			away[p] = math.MaxInt
			for _, n := range s.packages[p].nodes {
				away[p] = min(away[p], s.distance(g.NUMANode, n))
				home[p] = home[p] || n == g.NUMANode
			}
			own, nearest = own || home[p], min(nearest, away[p])
		}
		switch {
		case g.None:
		case !known:
			unknown = append(unknown, i)
		case own:
		case len(s.beside[g.NUMANode]) > 0:
			for _, p := range s.beside[g.NUMANode] {
				home[p] = true
			}
		default:
			moved = append(moved, i)
			for p := range home {
				home[p] = away[p] == nearest
			}
		}
		s.homes, s.away = append(s.homes, home), append(s.away, away)
	}
	if len(unknown) > 0 && (len(s.packages) > 1 || len(s.ram) > 1) {
		s.warn("the firmware does not report the NUMA node of the GPU of %s; spread evenly over %s",
			s.names(unknown), counted(len(s.packages), s.packageWord()))
	}
	if len(moved) > 0 {
		s.warn("the NUMA node of the GPU of %s has no CPUs for slots; they come from the nearest %s", s.names(moved), s.packageWord())
	}
}

// assignPackages puts every GPU on a package with room: its own if local, else
// the nearest possible. Where that leaves a choice, it spreads them evenly.
func (s *splitter) assignPackages(k, keep int, local bool) {
	const forbidden = 1 << 50
	var seats []int // package of each seat
	var fill []int64
	for p, n := range s.room(k, keep) {
		for i := range min(n, len(s.in.GPUs)) {
			seats = append(seats, p)
			fill = append(fill, int64((2*i+1)*s.total/len(s.packages[p].cores)))
		}
	}
	cost := make([][]int64, len(s.in.GPUs))
	for i := range cost {
		for j, p := range seats {
			c := int64(s.away[i][p])<<32 + fill[j]
			switch {
			case local && !s.homes[i][p]:
				c = forbidden
			case s.homes[i][p]:
				c = fill[j]
			}
			cost[i] = append(cost[i], c)
		}
	}
	var remote []int
	for i, j := range assign(cost) {
		s.where = append(s.where, seats[j])
		if !s.homes[i][seats[j]] {
			remote = append(remote, i)
		}
	}
	if len(remote) > 0 {
		s.warn("%s: the CPUs are on a different %s than the GPU, which slows copies to it, because there are too few cores near it; choose fewer GPUs with --gpus (gpus) or lower cpus_per_slot (--cpus-per-slot)",
			s.names(remote), s.packageWord())
	}
}

// place gives the slots of one package a block of k cores each, as near to
// their GPUs as possible.
func (s *splitter) place(p *cpuPackage, slots []int, k int) {
	blocks, _ := p.shape(len(slots), k, k)
	// Equally near blocks are taken from all nodes in turn, which spreads the
	// memory, and from a node's end, which leaves its first cores (the
	// machine's CPU 0) to the system.
	rank := make([]int64, len(blocks))
	onNode := map[[3]int]int64{}
	for j := len(blocks) - 1; j >= 0; j-- {
		blocks[j] = blocks[j][len(blocks[j])-k:]
		node := nodeKey(blocks[j][0])
		rank[j] = onNode[node]
		onNode[node]++
	}
	cost := make([][]int64, len(slots))
	for i, slot := range slots {
		node := s.in.GPUs[slot].NUMANode
		cost[i] = make([]int64, len(blocks))
		for j, cores := range blocks {
			sum := 0
			if node >= 0 && s.present[node] {
				for _, run := range runs(cores, nodeKey) {
					sum += len(run) * s.distance(node, run[0].node)
				}
			}
			cost[i][j] = int64(sum)<<20 + rank[j]
		}
	}
	for i, j := range assign(cost) {
		s.cores[slots[i]] = blocks[j]
	}
}

// shape cuts a package into at least n blocks of at least size cores, where size is k
// if possible, and otherwise at least least. In order of preference: separate level-3
// caches, blocks within one cache, blocks within one NUMA node, blocks that straddle.
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
	if best >= least {
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
	for start := 0; start < len(caches); {
		end := start
		for end < len(caches) && nodeKey(caches[end][0]) == nodeKey(caches[start][0]) {
			end++
		}
		join(caches[start:end])
		start = end
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

func countCarved(cores []physCore, k int) int {
	n := 0
	for end := len(cores); end >= k; n++ {
		end -= k
		for end > 0 && cores[end-1].pair == cores[end].pair {
			end--
		}
	}
	return n
}

// assign picks a column for each row so that the sum of costs is least (the Hungarian
// method, rows² × columns). There are at least as many columns as rows. Rows that differ
// only by a constant, which does not matter, get their columns in ascending order.
func assign(cost [][]int64) []int {
	n, m := len(cost), len(cost[0])
	for _, row := range cost {
		least := slices.Min(row)
		for j := range row {
			row[j] -= least
		}
	}
	rowPrice, colPrice := make([]int64, n+1), make([]int64, m+1)
	rowOf, from := make([]int, m+1), make([]int, m+1) // 1-based; 0 is none
	for row := 1; row <= n; row++ {
		rowOf[0] = row
		slack := make([]int64, m+1)
		for j := range slack {
			slack[j] = math.MaxInt64
		}
		done := make([]bool, m+1)
		col := 0
		for rowOf[col] != 0 {
			done[col] = true
			r, next, delta := rowOf[col], 0, int64(math.MaxInt64)
			for j := 1; j <= m; j++ {
				if done[j] {
					continue
				}
				if c := cost[r-1][j-1] - rowPrice[r] - colPrice[j]; c < slack[j] {
					slack[j], from[j] = c, col
				}
				if slack[j] < delta {
					delta, next = slack[j], j
				}
			}
			for j := range done {
				if done[j] {
					rowPrice[rowOf[j]] += delta
					colPrice[j] -= delta
				} else {
					slack[j] -= delta
				}
			}
			col = next
		}
		for col != 0 {
			rowOf[col] = rowOf[from[col]]
			col = from[col]
		}
	}
	out := make([]int, n)
	for j := 1; j <= m; j++ {
		if rowOf[j] != 0 {
			out[rowOf[j]-1] = j - 1
		}
	}
	for i := range cost {
		if slices.ContainsFunc(cost[:i], func(r []int64) bool { return slices.Equal(r, cost[i]) }) {
			continue
		}
		var alike, cols []int
		for j := i; j < n; j++ {
			if slices.Equal(cost[i], cost[j]) {
				alike, cols = append(alike, j), append(cols, out[j])
			}
		}
		slices.Sort(cols)
		for x, j := range alike {
			out[j] = cols[x]
		}
	}
	return out
}
