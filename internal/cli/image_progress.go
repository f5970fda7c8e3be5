package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	barWidth  = 30 // characters
	maxBars   = 12 // lines
	maxLayers = 1024
	redraw    = 100 * time.Millisecond
)

// bars shows a pull as docker does on a terminal, one line for each layer. Without a terminal it
// shows only a build's own lines.
type bars struct {
	s      Streams
	width  int // of the terminal; 0 if there is none
	order  []string
	layers map[string]image.Progress
	lines  int // on the screen
	drawn  time.Time
}

func newBars(s Streams) *bars {
	return &bars{s: s, width: cursor(s.Err), layers: map[string]image.Progress{}}
}

func (b *bars) tell(p image.Progress) {
	switch {
	case p.Layer == "" && p.Status != "" && !strings.HasPrefix(p.Status, "Digest:") && !strings.HasPrefix(p.Status, "Status:"):
		b.end()
		b.s.progress("%s", strings.TrimSpace(p.Status))
	case p.Layer == "" || b.width == 0 || strings.HasPrefix(p.Status, "Pulling from"):
	default:
		if _, known := b.layers[p.Layer]; !known {
			if len(b.order) >= maxLayers {
				return
			}
			b.order = append(b.order, p.Layer)
		}
		b.layers[p.Layer] = p
		if time.Since(b.drawn) >= redraw {
			b.draw()
		}
	}
}

func done(status string) bool {
	return slices.Contains([]string{"Pull complete", "Already exists", "Pushed", "Layer already exists"}, status)
}

// draw rewrites the lines on the screen: the layers in progress, and how many are done.
func (b *bars) draw() {
	var lines []string
	ready := 0
	for _, id := range b.order {
		if p := b.layers[id]; done(p.Status) {
			ready++
		} else if len(lines) < maxBars {
			lines = append(lines, b.line(p))
		}
	}
	lines = append(lines, fmt.Sprintf("  %d of %d layers done", ready, len(b.order)))
	var out strings.Builder
	if b.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", b.lines)
	}
	for _, line := range lines {
		if r := []rune(spell(b.s.Err, line)); len(r) >= b.width {
			line = string(r[:max(0, b.width-1)])
		}
		out.WriteString("\r\x1b[K" + line + "\n")
	}
	out.WriteString("\x1b[J") // erases longer earlier lines
	printf(b.s.Err, "%s", out.String())
	b.lines, b.drawn = len(lines), time.Now()
}

func (b *bars) line(p image.Progress) string {
	head := fmt.Sprintf("  %s: %-18s", p.Layer, p.Status)
	if p.Total <= 0 {
		return head
	}
	full := int(float64(barWidth) * min(1, float64(p.Current)/float64(p.Total)))
	bar := strings.Repeat("=", full)
	if full < barWidth {
		bar += ">" + strings.Repeat(" ", barWidth-full-1)
	}
	return fmt.Sprintf("%s [%s] %s/%s", head, bar, text.Bytes(p.Current), text.Bytes(p.Total))
}

// end leaves the last state on the screen; later output goes below.
func (b *bars) end() {
	if len(b.order) > 0 {
		b.draw()
	}
	b.order, b.layers, b.lines = nil, map[string]image.Progress{}, 0
}
