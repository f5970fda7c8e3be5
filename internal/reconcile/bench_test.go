package reconcile_test

import (
	"fmt"
	"testing"

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
