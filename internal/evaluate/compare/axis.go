package compare

import (
	"math"
	"strconv"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
)

// axis is a linear axis of times in nanoseconds, with round numbers to read it by.
type axis struct {
	low, high float64
	ticks     []float64
	unit      string
	scale     float64 // nanoseconds of a unit
	places    int     // after the decimal point of a tick
}

// newAxis returns an axis of these times, which are greater than 0, with about so many ticks.
func newAxis(times []float64, ticks int) axis {
	a := axis{low: math.Inf(1), unit: "ns", scale: 1}
	for _, t := range times {
		a.low, a.high = min(a.low, t), max(a.high, t)
	}
	room := (a.high - a.low) * 0.04
	if room <= a.high*1e-6 { // all are the same
		room = a.high * 0.01
	}
	a.low, a.high = max(a.low-room, 0), a.high+room
	for _, next := range []struct {
		unit  string
		scale float64
	}{{"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}} {
		if a.high >= next.scale {
			a.unit, a.scale = next.unit, next.scale
		}
	}
	step := niceStep((a.high - a.low) / a.scale / float64(max(1, ticks)))
	a.places = max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	first := math.Ceil(a.low / a.scale / step)
	for i := range 2*ticks + 2 {
		if at := (first + float64(i)) * step * a.scale; at <= a.high {
			a.ticks = append(a.ticks, at)
		}
	}
	return a
}

// niceStep returns 1, 2 or 5 times a power of ten, at least x.
func niceStep(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= x {
			return f * power
		}
	}
	return 10 * power
}

// at returns where a time is between 0 and 1.
func (a axis) at(ns float64) float64 { return (ns - a.low) / (a.high - a.low) }

// label returns a tick's number, without the unit.
func (a axis) label(ns float64) string { return strconv.FormatFloat(ns/a.scale, 'f', a.places, 64) }

// series returns the times of submissions in a benchmark, by rounds.
func (r *Report) series(benchmark int, sides ...int) (times []float64) {
	for _, side := range sides {
		times = append(times, r.each(func(m [][2]float64) float64 { return m[benchmark][side] })...)
	}
	return times
}

// span shows a time as tables do.
func span(ns float64) string { return result.Span(ns, 4) }
