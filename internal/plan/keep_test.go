package plan

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// booted returns inv with some MiB more or less on its nodes.
func booted(inv *inventory.Inventory, mibs ...int64) *inventory.Inventory {
	out := *inv
	out.Memory.Nodes = slices.Clone(inv.Memory.Nodes)
	for i, n := range mibs {
		out.Memory.Nodes[i].MemoryBytes += n * mib
		out.Memory.TotalBytes += n * mib
	}
	return &out
}

// TestMemoryAskedFor asks for the memory that a slot was shown to have.
func TestMemoryAskedFor(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	p := build(t, inv, config.Config{}, nil, false)
	shown := p.Slots[0].MemoryBytes
	for _, row := range []struct {
		ask     int64
		refused bool
	}{{shown, false}, {shown + shown/40, false}, {shown + shown/8, true}, {math.MaxInt64 - 1023, true}} {
		p, err := Build(input(booted(inv, -30, -30), config.Config{MemoryPerSlot: config.Size(row.ask)}))
		if row.refused {
			must.Err(t, err, "memory_per_slot")
			continue
		}
		must.Do(t, err)
		if got := p.Slots[0].MemoryBytes; got >= shown || got < shown-shown/32 {
			t.Errorf("%s: a slot has %s", config.Size(row.ask), config.Size(got))
		}
		if !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, "memory_per_slot: ") }) {
			t.Errorf("%s: not said: %q", config.Size(row.ask), p.Warnings)
		}
	}
}

// TestSizesOverflow asks for the largest sizes that a configuration can state.
func TestSizesOverflow(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	const most = math.MaxInt64 - 1023 // the most that a configuration can state
	for name, cfg := range map[string]config.Config{
		"reserve.memory":  {Reserve: config.Reserve{Memory: most}},
		"reserve.cpus":    {Reserve: config.Reserve{CPUs: math.MaxInt}},
		"memory_per_slot": {MemoryPerSlot: most},
		"cpus_per_slot":   {CPUsPerSlot: math.MaxInt},
	} {
		if _, err := Build(input(inv, cfg)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSlotsOfOneGPU refuses a slots.json in which slots share a GPU.
func TestSlotsOfOneGPU(t *testing.T) {
	t.Parallel()
	whole, mig := machinetest.B200x8(), machinetest.B200MIG()
	for name, row := range map[string]struct {
		machine machinetest.Machine
		do      func(bindings []Binding)
	}{
		"the same":           {whole, func(k []Binding) { k[3].Member = k[1].Member }},
		"at another address": {whole, func(k []Binding) { k[3].Member = k[1].Member; k[3].PCI = "0000:ff:00.0" }},
		"in other letters":   {whole, func(k []Binding) { k[3].Member = k[1].Member; k[3].UUID = strings.ToLower(k[3].UUID) }},
		"beside its own":     {whole, func(k []Binding) { k[0].Others = []Member{k[2].Member} }},
		"an instance":        {mig, func(k []Binding) { k[3].Member = k[1].Member }},
		"a whole and a part": {mig, func(k []Binding) { k[1].MIG = nil }},
		"one number":         {whole, func(k []Binding) { k[3].GPU = k[1].GPU }},
		"nothing":            {mig, func([]Binding) {}},
	} {
		bindings := bindingsOf(t, build(t, readMachine(t, row.machine), config.Config{Queue: "q"}, nil, false))
		row.do(bindings.Slots)
		text, err := json.Marshal(bindings)
		must.Do(t, err)
		if _, err = ParseBindings(text); (err == nil) != (name == "nothing") || err != nil && !strings.Contains(err.Error(), "move the file away") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
