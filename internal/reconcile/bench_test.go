package reconcile_test

import (
	"fmt"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// BenchmarkNoop is a reconcile that finds nothing to do, which a node does
// every 30 s: a recorded machine with recorded D-Bus. The target is 100 ms for
// 8 slots, and no more than linear growth.
func BenchmarkNoop(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("slots=%d", n), func(b *testing.B) {
			m := newMachine(b)
			w := slots(n)
			w.first, w.width = 0, 1
			p := w.plan(b)
			m.apply(p)
			for b.Loop() {
				s, err := m.h.Observe(b.Context(), p)
				if err != nil {
					b.Fatal(err)
				}
				if changes := reconcile.Diff(p, s); len(changes) > 0 {
					b.Fatalf("%d changes", len(changes))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/slot")
			if words := m.sd.Words(); len(words) > 0 {
				b.Fatalf("words were said: %v", words)
			}
		})
	}
}

// BenchmarkLookAtSettings is what the settings of a large machine add to a look:
// 224 CPUs and 1000 interrupts.
func BenchmarkLookAtSettings(b *testing.B) {
	m := newMachine(b)
	p := slots(1).plan(b)
	p.Tunables = []plan.Tunable{{Name: "/proc/irq/*/smp_affinity_list", Value: "0-1", Form: plan.List}}
	for n := range 1000 {
		m.write(fmt.Sprintf("/proc/irq/%d/smp_affinity_list", n), "0-223\n")
	}
	for n := range 224 {
		name := fmt.Sprintf("/sys/devices/system/cpu/cpufreq/policy%d/scaling_governor", n)
		m.write(name, "powersave\n")
		p.Tunables = append(p.Tunables, plan.Tunable{Name: name, Value: "performance", Form: plan.Word})
	}
	m.apply(p)
	for b.Loop() {
		if _, changes := m.diff(p); len(changes) > 0 {
			b.Fatalf("%d changes", len(changes))
		}
	}
}
