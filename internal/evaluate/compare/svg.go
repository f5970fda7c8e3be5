package compare

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// The picture, in pixels.
const (
	svgWidth  = 760
	svgLeft   = 130 // of the axes
	svgRight  = svgWidth - 30
	svgHead   = 78  // above the first benchmark
	svgPanel  = 150 // a benchmark
	svgCalls  = 116 // its calls, below
	svgFoot   = 34
	svgRow    = 40 // from one submission to the next
	svgJitter = 10 // dots lie this far above and below their row
	maxPanels = 64
)

// svgStyle has colors for light and dark, without variables, which not every viewer knows. Blue and orange
// differ for the color-blind, too (Okabe and Ito).
const svgStyle = `<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
text.title { font-size: 17px; font-weight: 600; }
text.spec { font-weight: 600; }
text.pale { fill: #59636e; }
.back { fill: #ffffff; }
.rule { stroke: #d1d9e0; }
circle { fill-opacity: 0.55; }
circle.a, text.a { fill: #0072b2; }
circle.b, text.b { fill: #b04a00; }
line.a { stroke: #0072b2; }
line.b { stroke: #b04a00; }
path { fill-opacity: 0.45; }
path.a { fill: #0072b2; }
path.b { fill: #b04a00; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
text.pale { fill: #9198a1; }
.back { fill: #0d1117; }
.rule { stroke: #3d444d; }
circle.a, text.a { fill: #56b4e9; }
circle.b, text.b { fill: #e69f00; }
line.a { stroke: #56b4e9; }
line.b { stroke: #e69f00; }
path.a { fill: #56b4e9; }
path.b { fill: #e69f00; }
}
</style>
`

// SVG returns the comparison as a picture that needs no other file: for each benchmark the rounds' times as
// dots, with the median and the interval of the mean, and how single calls spread.
func (r *Report) SVG() string {
	var b strings.Builder
	panels := min(len(r.Benchmarks), maxPanels)
	height := svgHead + svgPanel*panels + svgFoot
	var calls bool
	for i := range panels {
		if _, ok := r.spread(i, 5); ok {
			calls, height = true, height+svgCalls
		}
	}
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	names := Label(r.Files, 14)
	title := fmt.Sprintf("%s and %s on %s", names[0], names[1], r.Problem)
	put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-label="%s">`, svgWidth, height, escape(title))
	b.WriteString(svgStyle)
	put(`<rect class="back" width="100%%" height="100%%"/>`)
	put(`<text class="title" x="24" y="32">%s</text>`, escape(title))
	says, _ := r.Conclusion(names)
	put(`<text class="pale" x="24" y="54">%s</text>`, escape(says+"; "+text.Count(len(r.Rounds), "round")+", mode "+r.Mode))
	top := float64(svgHead)
	for i := range panels {
		r.panel(put, i, top, names)
		top += svgPanel
		if s, ok := r.spread(i, 5); ok {
			s.panel(put, top, names)
			top += svgCalls
		}
	}
	foot := fmt.Sprintf("a dot: mean of a round; │ median; ━ interval of the mean; verdicts come from the rounds' ratios, at %.0f %%", Level*100)
	if calls {
		foot = "a dot: mean of a round; │ median; ━ interval of the mean; a hill: " + fmt.Sprintf("the middle %.0f %% of the calls", middlePart*100)
	}
	if more := len(r.Benchmarks) - panels; more > 0 {
		foot = fmt.Sprintf("%s more; %s", text.Count(more, "benchmark"), foot)
	}
	put(`<text class="pale" x="24" y="%d">%s</text>`, height-14, escape(foot))
	put(`</svg>`)
	return b.String()
}

// panel draws a benchmark below top.
func (r *Report) panel(put func(string, ...any), i int, top float64, names [2]string) {
	bench := r.Benchmarks[i]
	put(`<text class="spec" x="24" y="%.0f">%s</text>`, top+16, escape(text.Line(bench.Spec, 60)))
	put(`<text x="%d" y="%.0f" text-anchor="end">%s</text>`, svgRight, top+16, escape(fmt.Sprintf("%s, %s", bench.Change(), bench.Verdict)))
	a := newAxis(r.series(i, 0, 1), 5)
	base := top + 34 + 2*svgRow
	a.rules(put, top+28, base)
	for side, class := range []string{"a", "b"} {
		y := top + 30 + svgRow*(float64(side)+0.5)
		put(`<text class="%s" x="24" y="%.0f">%s</text>`, class, y+4, escape(string("AB"[side])+" "+names[side]))
		times := r.series(i, side)
		for n, t := range times {
			// The golden ratio spreads any number of dots evenly, in the order of the rounds.
			_, part := math.Modf(float64(n) * math.Phi)
			put(`<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"><title>round %d: %s</title></circle>`, class, a.x(t), y+(2*part-1)*svgJitter, n+1, span(t))
		}
		put(`<line class="%s" x1="%.1f" x2="%[2]f" y1="%.1f" y2="%.1f" stroke-width="2"/>`, class, a.x(median(times)), y-14, y+14)
		var logs []float64
		for _, t := range times {
			logs = append(logs, math.Log(t))
		}
		if d := difference(logs, Level); d.Low > 0 {
			put(`<line class="%s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%[4]f" stroke-width="5" stroke-opacity="0.4"/>`, class, a.x(d.Low), a.x(d.High), y)
		}
	}
}

// panel draws single calls below top.
func (s *spread) panel(put func(string, ...any), top float64, names [2]string) {
	base := top + 2*svgRow
	s.rules(put, top-6, base)
	for side, class := range []string{"a", "b"} {
		foot := top + svgRow*float64(side+1)
		put(`<text class="%s" x="24" y="%.0f">%s</text>`, class, foot-10, escape(string("AB"[side])+" "+names[side]))
		put(`<path class="%s" d="%s"><title>%s</title></path>`, class, s.outline(side, svgLeft, svgRight, foot, svgRow-10), escape(s.about(side)))
	}
}

// x returns where a time is in the picture.
func (a axis) x(ns float64) float64 { return svgLeft + min(max(a.at(ns), 0), 1)*(svgRight-svgLeft) }

// rules draws the axis at base, and a line from top to it for each tick.
func (a axis) rules(put func(string, ...any), top, base float64) {
	for _, t := range a.ticks {
		put(`<line class="rule" x1="%.1f" x2="%[1]f" y1="%.0f" y2="%.0f"/>`, a.x(t), top, base)
		put(`<text class="pale" x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, a.x(t), base+16, a.label(t))
	}
	put(`<line class="rule" x1="%d" x2="%d" y1="%.0f" y2="%[3]f"/>`, svgLeft, svgRight, base)
	put(`<text class="pale" x="24" y="%.0f">time, %s</text>`, base+16, a.unit)
}

// escape returns a text for an element or an attribute. What XML forbids is not visible, and replaced.
func escape(s string) string { return html.EscapeString(text.Line(s, 300)) }
