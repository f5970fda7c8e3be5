package plan

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// cpuCount returns how many CPUs a list has.
func cpuCount(t *testing.T, list string) int {
	t.Helper()
	set, err := cpuset.Parse(list)
	must.Do(t, err)
	return set.Len()
}

// TestGuideMachines checks that the machines of the vendors' guides get what the guides promise. What
// they get by default is in the golden files.
func TestGuideMachines(t *testing.T) {
	t.Parallel()
	h100, smt, l40s := machinetest.GuideH100(), machinetest.GuideH100SMT(), machinetest.GuideL40S()
	threads := h100
	threads.Name, threads.Threads = "128 cores with SMT", 2
	most := h100 // a kernel that keeps more
	most.NodeBytes = 122 << 30
	decimal := h100 // 256 GB, not GiB
	decimal.NodeBytes = 128e9
	odd := h100
	odd.Packages, odd.Cores, odd.CoresPerL3, odd.NodeBytes = 1, 129, 0, 2*h100.NodeBytes
	least := l40s
	least.Hypervisor, least.Cores = false, 17
	const gib = 1 << 30
	for name, tt := range map[string]struct {
		machinetest.Machine
		config.Config
		cpus   int   // of each slot
		memory int64 // of each slot, at least
		says   string
	}{
		"the command":                  {h100, config.Config{CPUsPerSlot: 16, MemoryPerSlot: 32 * gib}, 16, 30 * gib, "memory_per_slot: 32GiB is slightly more than fits; each slot gets 30GiB"},
		"the command, CPUs":            {h100, config.Config{CPUsPerSlot: 16}, 16, 30 * gib, "the slots take every CPU, so the system has to run on theirs"},
		"the command, SMT":             {smt, config.Config{CPUsPerSlot: 16, MemoryPerSlot: 32 * gib}, 16, 30 * gib, "the slots take every CPU"},
		"the command, 256 CPUs":        {threads, config.Config{CPUsPerSlot: 16, MemoryPerSlot: 32 * gib}, 16, 30 * gib, ""},
		"a kernel that keeps more":     {most, config.Config{MemoryPerSlot: 32 * gib}, 15, 30 * gib, "each slot gets 30GiB"},
		"GB":                           {decimal, config.Config{MemoryPerSlot: 32 * gib}, 15, 29 * gib, "each slot gets"},
		"no reserve":                   {h100, config.Config{Reserve: config.Reserve{CPUs: config.NoThreads}}, 16, 30 * gib, ""},
		"no reserve, SMT":              {smt, config.Config{Reserve: config.Reserve{CPUs: config.NoThreads}}, 16, 30 * gib, ""},
		"two L40S, no reserve":         {l40s, config.Config{Reserve: config.Reserve{CPUs: config.NoThreads}}, 8, 135 * gib, ""},
		"two L40S, by variables":       {l40s, config.Config{CPUsPerSlot: 8, MemoryPerSlot: 144 * gib}, 8, 135 * gib, "memory_per_slot: 144GiB is slightly more"},
		"one core more than advised":   {odd, config.Config{}, 16, 30 * gib, ""},
		"one core more than the least": {least, config.Config{}, 8, 135 * gib, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inv := readMachine(t, tt.Machine)
			p := build(t, inv, tt.Config, nil, false)
			for _, s := range p.Slots {
				if n := cpuCount(t, s.CPUs); n != tt.cpus || s.MemoryBytes < tt.memory {
					t.Errorf("%s has %d CPUs and %s, want %d and %s", s.Name, n, config.Size(s.MemoryBytes), tt.cpus, config.Size(tt.memory))
				}
			}
			text := strings.Join(p.Warnings, "\n")
			if !strings.Contains(text, tt.says) || tt.says == "" && strings.Contains(text, "reserved for the system") {
				t.Errorf("%q is not said: %s", tt.says, text)
			}
			if p.Reserved.MemoryBytes < 2*gib {
				t.Errorf("the system has %s", config.Size(p.Reserved.MemoryBytes))
			}
		})
	}
}

// TestReserveThatWasSaid checks that a configured reserve never shrinks.
func TestReserveThatWasSaid(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.GuideH100())
	for _, cfg := range []config.Config{
		{CPUsPerSlot: 16, Reserve: config.Reserve{CPUs: 1}},
		{MemoryPerSlot: 32 << 30, Reserve: config.Reserve{Memory: 12 << 30}},
	} {
		_, err := Build(input(inv, cfg))
		must.Err(t, err, "_per_slot")
	}
	p := build(t, inv, config.Config{Reserve: config.Reserve{CPUs: 8, Memory: 24 << 30}}, nil, false)
	if p.Reserved.MemoryBytes < 24<<30 || cpuCount(t, p.Reserved.CPUs) < 8 {
		t.Errorf("reserved are %+v", p.Reserved)
	}
}

// TestAdvisedMemoryIsStable plans after boots that leave more or less memory.
func TestAdvisedMemoryIsStable(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.GuideH100())
	for _, cfg := range []config.Config{{}, {MemoryPerSlot: 32 << 30}} {
		for _, by := range []int64{-200, -1, 0, 1, 200} {
			p := build(t, booted(inv, by, -by), cfg, nil, false)
			if got := p.Slots[0].MemoryBytes; got != 30<<30 {
				t.Errorf("%d MiB more, asked %s: a slot has %s", by, cfg.MemoryPerSlot, config.Size(got))
			}
		}
	}
}
