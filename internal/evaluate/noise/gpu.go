package noise

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Samples takes a sample every second or so until ctx is done. It returns an error if
// it ends earlier.
type Samples func(ctx context.Context, each func(nvml.Sample)) error

// idleReason is NVML's bit for an idle GPU.
const idleReason = 1 << 0

// gpuRun accumulates samples.
type gpuRun struct {
	mu                        sync.Mutex
	all, busy                 int
	clock, temperature, power []int
	margin                    *int
	reasons                   map[string]int
	err                       string
}

func (g *gpuRun) add(s nvml.Sample) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all++
	if s.Reasons != nil {
		for bit := range 64 {
			if *s.Reasons>>bit&1 == 1 {
				g.reasons[reasonName(bit)]++
			}
		}
	}
	// An idle GPU lowers its own clocks.
	idle := s.Reasons != nil && *s.Reasons&idleReason != 0 || s.Busy != nil && *s.Busy == 0
	if !idle {
		g.busy++
		g.clock = appendValue(g.clock, s.Clock, 1)
	}
	g.temperature = appendValue(g.temperature, s.Temperature, 1)
	g.power = appendValue(g.power, s.Power, 1000)
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
	out := GPU{
		ID: id, Error: g.err, Samples: g.all, Busy: g.busy, Clock: spread(g.clock), Temperature: spread(g.temperature), Power: spread(g.power),
		Margin: g.margin, Reasons: maps.Clone(g.reasons),
	}
	if g.all == 0 && g.err == "" {
		out.Error = "not sampled: the driver has not answered yet"
	}
	for _, mhz := range g.clock {
		if 100*mhz < LowClock*out.Clock.Median {
			out.LowClock++
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

func appendValue(values []int, v *uint32, unit uint32) []int {
	if v == nil {
		return values
	}
	return append(values, int(*v/unit))
}

// spread returns nil if there is no value.
func spread(values []int) *Spread {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	return &Spread{Min: sorted[0], Median: sorted[(len(sorted)-1)/2], Max: sorted[len(sorted)-1]}
}
