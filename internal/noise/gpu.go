package noise

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/text"
)

// Samples takes a sample every second or so until ctx is done. It returns an error if
// it ends earlier.
type Samples func(ctx context.Context, each func(probe.Sample)) error

// idleReason is NVML's bit for an idle GPU.
const idleReason = 1 << 0

// gpuRun accumulates samples, in a few kilobytes however many there are.
type gpuRun struct {
	mu                        sync.Mutex
	all, busy                 int
	clock, temperature, power counts
	margin                    *int
	reasons                   [64]int
	err                       string
}

func newGPURun() *gpuRun {
	return &gpuRun{clock: counts{}, temperature: counts{}, power: counts{}}
}

func (g *gpuRun) add(s probe.Sample) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all++
	for i := range g.reasons {
		if s.Reasons != nil && *s.Reasons>>i&1 == 1 {
			g.reasons[i]++
		}
	}
	// An idle GPU lowers its own clocks.
	idle := s.Reasons != nil && *s.Reasons&idleReason != 0 || s.Busy != nil && *s.Busy == 0
	if !idle {
		g.busy++
		g.clock.add(s.Clock, 1, 5, 1000)
	}
	g.temperature.add(s.Temperature, 1, 1, 200)
	g.power.add(s.Power, 1000, 5, 500)
	if s.Margin != nil && (g.margin == nil || int(*s.Margin) < *g.margin) {
		g.margin = new(int(*s.Margin))
	}
}

func (g *gpuRun) ended(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	verb := "sampling stopped: "
	if g.all == 0 {
		verb = "not sampled: "
	}
	g.err = verb + text.Line(err.Error(), 500)
}

func (g *gpuRun) summary(id string) GPU {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := GPU{ID: id, Error: g.err, Samples: g.all, Busy: g.busy, Clock: g.clock.spread(), Temperature: g.temperature.spread(), Power: g.power.spread(), Margin: g.margin}
	if g.all == 0 && g.err == "" {
		out.Error = "not sampled: the driver has not answered yet"
	}
	if out.Clock != nil {
		out.LowClock = g.clock.countBelow(out.Clock.Median * LowClock)
	}
	out.Reasons = map[string]int{}
	for i, n := range g.reasons {
		if n > 0 {
			out.Reasons[reasonName(i)] = n
		}
	}
	return out
}

func reasonName(bit int) string {
	if name := clockReasons[bit].name; name != "" {
		return name
	}
	return fmt.Sprintf("0x%x", uint64(1)<<bit)
}

// counts is how often each value came.
type counts map[int]int

// add counts a value, rounded down to a multiple of step. There are so many steps at most: the last
// one includes all higher values.
func (c counts) add(v *uint32, unit uint32, step, most int) {
	if v != nil {
		c[step*min(int(*v/unit)/step, most-1)]++
	}
}

// spread returns nil if there is no value.
func (c counts) spread() *Spread {
	if len(c) == 0 {
		return nil
	}
	values, all, below := slices.Sorted(maps.Keys(c)), c.countBelow(math.MaxInt), 0
	s := &Spread{Min: values[0], Max: values[len(values)-1]}
	for _, v := range values {
		if below += c[v]; 2*below >= all {
			s.Median = v
			break
		}
	}
	return s
}

// countBelow returns how many values are less than hundredfold/100.
func (c counts) countBelow(hundredfold int) (n int) {
	for v, k := range c {
		if 100*v < hundredfold {
			n += k
		}
	}
	return n
}
