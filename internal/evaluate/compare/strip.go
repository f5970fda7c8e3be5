package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// What a strip is made of: a dot is one round, a larger one is two, and a square more. The line is the median.
var dots = []rune{' ', '·', '•', '■'}

const medianMark = '│'

// maxStrips bounds the benchmarks that Strips shows.
const maxStrips = 8

// Strips returns a plot for a terminal of that many columns, 20 or more: for each benchmark the rounds' times
// of both submissions above a common axis, and those of single calls above another. paint colors the dots of submission 0 or 1.
func (r *Report) Strips(columns int, paint func(side int, s string) string) string {
	if len(r.Rounds) == 0 {
		return ""
	}
	var b strings.Builder
	width := max(columns-4, 16) // after "  A "
	for i := range r.Benchmarks[:min(len(r.Benchmarks), maxStrips)] {
		a := newAxis(r.series(i, 0, 1), width/14)
		put := func(title string, a axis, row func(side int) string) {
			b.WriteString("  " + text.Line(title, columns-2) + "\n")
			for side, name := range "AB" {
				b.WriteString("  " + string(name) + " " + paint(side, row(side)) + "\n")
			}
			line, labels := a.draw(width)
			b.WriteString("    " + line + "\n    " + labels + "\n")
		}
		b.WriteString("\n")
		put(r.Benchmarks[i].Spec, a, func(side int) string { return r.strip(i, side, a, width) })
		if s, ok := r.spread(i, width/14); ok && i < maxSpreads {
			put(fmt.Sprintf("single calls, the middle %.0f %%", middlePart*100), s.axis, func(side int) string { return s.bars(side, width) })
		}
	}
	return b.String()
}

// Unseen returns how many benchmarks Strips leaves out.
func (r *Report) Unseen() int { return max(0, len(r.Benchmarks)-maxStrips) }

func (r *Report) strip(benchmark, side int, a axis, width int) string {
	cells := make([]int, width)
	times := r.series(benchmark, side)
	for _, t := range times {
		cells[a.cell(t, width)]++
	}
	line := make([]rune, width)
	for i, n := range cells {
		line[i] = dots[min(n, len(dots)-1)]
	}
	if at := a.cell(median(times), width); len(times) > 2 || line[at] == ' ' {
		line[at] = medianMark
	}
	return strings.TrimRight(string(line), " ")
}

// cell returns the column of a time.
func (a axis) cell(ns float64, width int) int {
	return min(max(int(a.at(ns)*float64(width)), 0), width-1)
}

// draw returns the axis, and its labels below.
func (a axis) draw(width int) (line, labels string) {
	rule, below := []rune(strings.Repeat("─", width)), []rune(strings.Repeat(" ", width))
	free := 0
	for _, t := range a.ticks {
		word := []rune(a.label(t) + " " + a.unit)
		at := a.cell(t, width)
		rule[at] = '┬'
		if from := min(max(at-len(word)/2, 0), width-len(word)); from >= free {
			copy(below[from:], word)
			free = from + len(word) + 1
		}
	}
	return string(rule), strings.TrimRight(string(below), " ")
}

func median(times []float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Label returns different names for both submissions, of at most that many characters, 12 or more: those of the files, or
// their paths if these are the same.
func Label(files [2]string, most int) (names [2]string) {
	base := func(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
	var whole [2][]rune
	for i, f := range files {
		if base(files[0]) != base(files[1]) {
			f = base(f)
		}
		r := []rune(text.Line(f, 1000))
		whole[i], names[i] = r, string(r)
		if len(r) > most {
			names[i] = string(r[:most/2-1]) + "…" + string(r[len(r)-(most-most/2):])
		}
	}
	if names[0] != names[1] {
		return names
	}
	same := 0 // at their heads
	for same < min(len(whole[0]), len(whole[1])) && whole[0][same] == whole[1][same] {
		same++
	}
	for i, r := range whole {
		names[i] = around(r, same, most-2)
	}
	if names[0] == names[1] { // they differ in what no one sees
		names = [2]string{"A " + names[0], "B " + names[1]}
	}
	return names
}

// around returns at most that many characters around one of them.
func around(r []rune, at, most int) string {
	head, tail := "", ""
	if from := max(0, min(at-most/3, len(r)-most+1)); from > 0 {
		r, head, most = r[from:], "…", most-1
	}
	if len(r) > most {
		r, tail = r[:most-1], "…"
	}
	return head + string(r) + tail
}
