package compare

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// middlePart is the part of the calls that a plot shows, around the median: a few that were interrupted would take most
	// of the axis.
	middlePart = 0.95
	// maxSpreads bounds the benchmarks whose calls Strips shows.
	maxSpreads = 3
)

// spread is how the times of single calls of a benchmark spread, in all rounds.
type spread struct {
	axis
	calls [2][]float64 // sorted
}

// spread returns that of a benchmark, with about so many ticks, and whether the judge reports calls.
func (r *Report) spread(benchmark, ticks int) (s spread, ok bool) {
	var ends []float64
	for side := range s.calls {
		for _, round := range r.Rounds {
			if len(round.Calls) > benchmark {
				s.calls[side] = append(s.calls[side], round.Calls[benchmark][side]...)
			}
		}
		if len(s.calls[side]) == 0 {
			return s, false
		}
		slices.Sort(s.calls[side])
		low, high := s.middle(side)
		ends = append(ends, low, high)
	}
	s.axis = newAxis(ends, ticks)
	return s, true
}

// middle returns between which times the calls lie that are shown.
func (s *spread) middle(side int) (low, high float64) {
	sorted := s.calls[side]
	out := int(float64(len(sorted)) * (1 - middlePart) / 2)
	return sorted[out], sorted[len(sorted)-1-out]
}

// heights returns how many calls of a submission are in each of so many equal parts of the axis, over the most.
func (s *spread) heights(side, parts int) []float64 {
	counts, most := make([]float64, parts), 1.
	low, high := s.middle(side)
	for _, ns := range s.calls[side] {
		if ns >= low && ns <= high {
			i := s.cell(ns, parts)
			counts[i]++
			most = max(most, counts[i])
		}
	}
	for i := range counts {
		counts[i] /= most
	}
	return counts
}

// bars returns the calls of a submission as a line of so many columns.
func (s *spread) bars(side, width int) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, h := range s.heights(side, width) {
		i := int(h*float64(len(levels)-1) + 0.5)
		if h > 0 {
			i = max(i, 1)
		}
		b.WriteRune(levels[i])
	}
	return strings.TrimRight(b.String(), " ")
}

// about says in words what is shown of a submission.
func (s *spread) about(side int) string {
	low, high := s.middle(side)
	return fmt.Sprintf("%d calls: median %s, the middle %.0f %% %s to %s", len(s.calls[side]), span(median(s.calls[side])), middlePart*100, span(low), span(high))
}

// outline returns the calls of a submission as a path in a picture: a hill of that height on a base line.
func (s *spread) outline(side int, left, right, base, height float64) string {
	const parts = 120
	step := (right - left) / parts
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", left, base)
	for i, h := range s.heights(side, parts) {
		fmt.Fprintf(&b, "V%.1fH%.1f", base-h*height, left+step*float64(i+1))
	}
	fmt.Fprintf(&b, "V%.1fZ", base)
	return b.String()
}
