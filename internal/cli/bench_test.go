package cli

import (
	"fmt"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/test/bktest"
)

// slotCounts are the sizes of node that benchmarks compare: one GPU, a usual server, and more
// than any server has.
var slotCounts = []int{1, 8, 64}

// BenchmarkInstall measures an install on a new machine until all its agents are connected:
// reading, planning, every file with its sync (to memory), the answers of a recording systemd,
// and Buildkite's agent API over HTTP.
func BenchmarkInstall(b *testing.B) {
	for _, slots := range slotCounts {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				n := newNode(b, slots)
				f, bk := n.serve(b)
				b.StartTimer()
				if err := n.install(b.Context(), bk.Endpoint(), bktest.DefaultAgentToken); err != nil {
					b.Fatal(err)
				}
				connected, err := f.connected(bk)
				b.StopTimer()
				if connected != slots || err != nil {
					b.Fatalf("%d agents connected, want %d: %v", connected, slots, err)
				}
				if err := bk.Close(); err != nil {
					b.Fatal(err)
				}
				n.remove(b)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(slots), "µs/slot")
		})
	}
}

// benchNode measures a step on nodes that are as planned: it changes nothing.
func benchNode(b *testing.B, step func(b *testing.B, n *testNode, p *plan.Plan) []reconcile.Change) {
	for _, slots := range slotCounts {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			n := newNode(b, slots)
			defer n.remove(b)
			if err := n.install(b.Context(), "http://127.0.0.1:1/v3", "the-token"); err != nil {
				b.Fatal(err)
			}
			p, _, _, err := n.think(b.Context(), configFlags{})
			if err != nil {
				b.Fatal(err)
			}
			n.sd.Words()
			for b.Loop() {
				if changes := step(b, n, p); len(changes) > 0 {
					b.Fatalf("%d changes: %v", len(changes), changes)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(slots), "µs/slot")
			if words := n.sd.Words(); len(words) > 0 {
				b.Fatalf("words were said: %v", words)
			}
		})
	}
}

// BenchmarkNoop measures a full pass of the daemon on a node that is as planned, from the first
// file of /sys to the empty list of changes. The target is 100 ms for 8 slots, and no more than
// linear growth.
func BenchmarkNoop(b *testing.B) {
	benchNode(b, func(b *testing.B, n *testNode, _ *plan.Plan) []reconcile.Change {
		_, _, changes, err := n.think(b.Context(), configFlags{})
		if err != nil {
			b.Fatal(err)
		}
		return changes
	})
}

// BenchmarkLook measures the daemon's look every 30 seconds on a node that is as planned. At 8
// slots 0.1 % of a CPU is 30 ms.
func BenchmarkLook(b *testing.B) {
	benchNode(b, func(b *testing.B, n *testNode, p *plan.Plan) []reconcile.Change {
		state, err := n.host.Observe(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		return reconcile.Diff(p, state)
	})
}
