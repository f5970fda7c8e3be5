package reconcile_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// BenchmarkSlots measures a plan, and a reconcile that finds nothing to do, for one
// machine with more and more slots: a server whose eight GPUs are eight partitions each.
// A node does both every 30 s; the target is 100 ms for 8 slots. The last column is the
// cost of a slot relative to a slot of eight: if it grows, something is not linear.
func BenchmarkSlots(b *testing.B) {
	inv, err := inventory.Read(b.Context(), inventory.Options{Root: machinetest.MI300XCPX().Dir(b)})
	must.Do(b, err)
	inv.Software.Agent.Path = "" // the tree has none to copy
	counts := []int{8, 16, 32, 64}
	input := func(slots int, bindings *plan.Bindings) plan.Input {
		cfg := config.Config{Queue: "q"}.WithDefaults()
		for gpu := range slots / 8 {
			cfg.GPUs.List = append(cfg.GPUs.List, strconv.Itoa(gpu))
		}
		return plan.Input{Inventory: inv, Config: &cfg, Bindings: bindings, Binary: "/usr/local/bin/kbnode", Version: "1.2.3"}
	}
	build := func(b *testing.B, in plan.Input) *plan.Plan {
		p, err := plan.Build(in)
		must.Do(b, err)
		return p
	}
	each := func(name string, run func(b *testing.B, slots int)) {
		first := 0.0 // what each of eight slots costs, in ns
		for _, n := range counts {
			b.Run(fmt.Sprintf("%s/slots=%d", name, n), func(b *testing.B) {
				run(b, n)
				cost := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(n)
				if n == counts[0] {
					first = cost
				}
				b.ReportMetric(cost, "ns/slot")
				if first > 0 {
					b.ReportMetric(cost/first, "of-8-slots")
				}
			})
		}
	}
	each("plan", func(b *testing.B, n int) {
		all := build(b, input(64, nil))
		i := slices.IndexFunc(all.Files, func(f plan.File) bool { return f.Path == plan.BindingsPath })
		bindings, err := plan.ParseBindings([]byte(all.Files[i].Content))
		must.Do(b, err)
		for b.Loop() {
			if p := build(b, input(n, bindings)); len(p.Slots) != n {
				b.Fatalf("%d slots", len(p.Slots))
			}
		}
	})
	each("noop", func(b *testing.B, n int) {
		m := newMachine(b)
		m.write("/sys/fs/cgroup/cpuset.cpus.effective", inv.CPU.Online+"\n")
		m.write("/sys/fs/cgroup/cpuset.mems.effective", "0-7\n")
		p := build(b, input(n, nil))
		p.Tunables = nil // see BenchmarkLookAtSettings
		m.apply(p)
		for b.Loop() {
			s, err := m.h.Observe(b.Context(), p)
			must.Do(b, err)
			if changes := reconcile.Diff(p, s); len(changes) > 0 {
				b.Fatalf("%d changes: %v", len(changes), changes)
			}
		}
		if words := m.sd.Words(); len(words) > 0 {
			b.Fatalf("words were said: %v", words)
		}
	})
	// Each slot is to get the CPU of the previous one, and the first slot runs a job.
	each("reshape", func(b *testing.B, n int) {
		m := newMachine(b)
		w := want{slots: n, first: 1, width: 1, bytes: 1 << 30, generation: "g1", parked: -1}
		m.apply(w.plan(b))
		m.run(0)
		w.first, w.generation = 0, "g2"
		p := w.plan(b)
		s, err := m.h.Observe(b.Context(), p)
		must.Do(b, err)
		for b.Loop() {
			if changes := reconcile.Diff(p, s); len(deferred(changes, n-1)) == 0 {
				b.Fatal("the last slot does not wait")
			}
		}
	})
}

// BenchmarkLookAtSettings measures what the settings of a large machine add to a look:
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
