package noise

import (
	"context"
	"fmt"
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
	return &gpuRun{clock: counts{step: 5, bins: make([]uint32, 1000)}, temperature: counts{step: 1, bins: make([]uint32, 200)}, power: counts{step: 5, bins: make([]uint32, 500)}}
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
		g.clock.add(s.Clock, 1)
	}
	g.temperature.add(s.Temperature, 1)
	g.power.add(s.Power, 1000)
	if s.Margin != nil && (g.margin == nil || int(*s.Margin) < *g.margin) {
		m := int(*s.Margin)
		g.margin = &m
	}
}

// ended records why there are no more samples.
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

// counts is how often a value fell into each step. The last step includes all higher
// values.
type counts struct {
	step  int
	bins  []uint32
	total uint32
}

func (c *counts) add(v *uint32, unit uint32) {
	if v == nil {
		return
	}
	c.bins[min(int(*v/unit)/c.step, len(c.bins)-1)]++
	c.total++
}

// spread returns nil if there is no value.
func (c *counts) spread() *Spread {
	if c.total == 0 {
		return nil
	}
	s := &Spread{Min: -1, Median: -1}
	count := uint32(0)
	for i, n := range c.bins {
		if n == 0 {
			continue
		}
		v := i * c.step
		if s.Min < 0 {
			s.Min = v
		}
		if count += n; s.Median < 0 && 2*count >= c.total {
			s.Median = v
		}
		s.Max = v
	}
	return s
}

// countBelow returns how many values are less than hundredfold/100.
func (c *counts) countBelow(hundredfold int) (n int) {
	for i, k := range c.bins {
		if 100*i*c.step < hundredfold {
			n += int(k)
		}
	}
	return n
}
