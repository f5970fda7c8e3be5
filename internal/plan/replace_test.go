package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCardsChange replaces, removes, moves and adds cards of a running node. Only the slot
// concerned is parked, whatever names the cards; an install refuses what no longer fits.
func TestCardsChange(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	const fresh, free = "GPU-99990000-0000-4000-8000-000000000099", "0000:f5:00.0"
	uuids, addresses := config.GPUs{}, config.GPUs{}
	for _, g := range inv.GPUs {
		uuids.List, addresses.List = append(uuids.List, g.UUID), append(addresses.List, "0000"+g.PCI)
	}
	byUUID, fours := config.Config{GPUs: uuids}, config.Config{GPUsPerSlot: 4}
	grouped := config.Config{Groups: config.Groups{uuids.List[:4], uuids.List[4:]}}
	replaced := fmt.Sprintf("GPU %s at %s was replaced by %s", uuids.List[3], inv.GPUs[3].PCI, fresh)
	const mixed = "GPU 0 is NVIDIA B200 and GPU 3 is NVIDIA B300; group GPUs of the same kind"
	replace := func(gpus []inventory.GPU) []inventory.GPU {
		gpus[3].UUID = fresh
		return gpus
	}
	other := func(gpus []inventory.GPU) []inventory.GPU {
		gpus[3].UUID, gpus[3].Model = fresh, "NVIDIA B300"
		return gpus
	}
	move := func(gpus []inventory.GPU) []inventory.GPU { // all by one address
		for i := range gpus {
			gpus[i].PCI = append(slices.Clone(addresses.List[1:]), "0000"+free)[i][4:]
		}
		return gpus
	}
	add := func(model string) func([]inventory.GPU) []inventory.GPU {
		return func(gpus []inventory.GPU) []inventory.GPU {
			g := gpus[7]
			g.UUID, g.PCI, g.Minor, g.RenderMinor, g.Model = fresh, free, 8, -1, model
			return append(gpus, g)
		}
	}
	for name, row := range map[string]struct {
		cfg, now config.Config // now is zero if the configuration is unchanged
		change   func(gpus []inventory.GPU) []inventory.GPU
		parked   string // "slot: why"; "" if every slot is as it was
		said     string // in a warning
		refused  string // by an install; "" if it accepts the machine
		changed  bool   // the configuration, so that reconcile refuses as well
	}{
		"replaced": {cfg: config.Config{}, change: replace, said: "slot gpu3: GPU " + uuids.List[3]},
		"replaced, by UUID": {cfg: byUUID, change: replace, said: "slot gpu3: " + replaced,
			refused: "GPU " + uuids.List[3] + " does not exist: this machine has GPUs 0 to 7"},
		"replaced in a group, by UUID": {cfg: grouped, change: replace, said: "slot gpu0: " + replaced, refused: "groups: GPU " + uuids.List[3] + " does not exist"},
		"replaced, by address":         {cfg: config.Config{GPUs: addresses}, change: replace, said: "slot gpu3: GPU " + uuids.List[3]},
		"another model":                {cfg: fours, change: other, parked: "gpu0: " + mixed, refused: "gpus_per_slot: 7 GPUs cannot be divided into groups of 4"},
		"another model in a group": {cfg: config.Config{Groups: config.Groups{{"0", "1", "2", "3"}}}, change: other, parked: "gpu0: " + mixed,
			refused: "groups: " + mixed},
		"another model in a new group": {cfg: config.Config{}, now: config.Config{Groups: config.Groups{{"2", "3"}}}, change: other,
			refused: "groups: GPU 2 is NVIDIA B200 and GPU 3 is NVIDIA B300", changed: true},
		"removed, by UUID": {cfg: byUUID, change: func(gpus []inventory.GPU) []inventory.GPU { return slices.Delete(gpus, 3, 4) },
			parked: "gpu3: GPU " + uuids.List[3] + " at " + inv.GPUs[3].PCI + " is missing"},
		"moved, a group by address": {cfg: config.Config{Groups: config.Groups{{addresses.List[0], addresses.List[2]}}}, change: move, refused: "groups: GPU " + inv.GPUs[0].PCI + " does not exist"},
		"moved, by address":         {cfg: config.Config{GPUs: addresses}, change: move, refused: "GPU " + inv.GPUs[0].PCI + " does not exist"},
		"added":                     {cfg: fours, change: add("NVIDIA B200"), said: "GPU " + fresh + " is in no slot", refused: "gpus_per_slot: 9 GPUs cannot be"},
		"a display card":            {cfg: fours, change: add("NVIDIA T400 4GB"), said: "GPU " + fresh + " is in no slot", refused: "gpus_per_slot: 1 GPU cannot be"},
		"added to a count":          {cfg: config.Config{GPUs: config.GPUs{All: true}, GPUCount: 8}, change: add("NVIDIA B200"), refused: "gpu_count: 8 and gpus, which lists 9, contradict"},
		"added to full slots": {cfg: config.Config{CPUsPerSlot: 26}, change: add("NVIDIA B200"), said: "GPU " + fresh + " is in no slot: cpus_per_slot: 26 CPUs for each of 9 slots",
			refused: "cpus_per_slot: 26 CPUs for each of 9 slots do not fit"},
		"too much for all":    {cfg: config.Config{CPUsPerSlot: 26}, now: config.Config{CPUsPerSlot: 30}, change: add("NVIDIA B200"), refused: "cpus_per_slot: 30 CPUs for each of 9 slots do not fit", changed: true},
		"added to a list":     {cfg: byUUID, change: add("NVIDIA B200")},
		"never shared out":    {cfg: config.Config{}, now: config.Config{GPUsPerSlot: 3}, refused: "gpus_per_slot: 8 GPUs cannot be divided into groups of 3", changed: true},
		"of those now chosen": {cfg: config.Config{GPUCount: 4, GPUsPerSlot: 2}, now: config.Config{GPUCount: 5, GPUsPerSlot: 2}, refused: "gpus_per_slot: 5 GPUs", changed: true},
		"of those now listed": {cfg: config.Config{GPUs: config.GPUs{List: []string{"0", "1"}}, GPUsPerSlot: 2},
			now: config.Config{GPUs: config.GPUs{List: []string{"0", "1", "2"}}, GPUsPerSlot: 2}, refused: "gpus_per_slot: 3 GPUs", changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := build(t, inv, row.cfg, nil, true)
			if row.changed {
				row.cfg = row.now
			}
			after := *inv
			after.GPUs = slices.Clone(inv.GPUs)
			if row.change != nil {
				after.GPUs = row.change(after.GPUs)
			}
			in := input(&after, row.cfg)
			in.Bindings = bindingsOf(t, before)
			in.Reshape = true
			if _, err := Build(in); row.refused == "" && err != nil || row.refused != "" && (err == nil || !strings.Contains(err.Error(), row.refused)) {
				t.Errorf("an install says %v, want %q", err, row.refused)
			}
			in.Reshape = false
			if row.changed {
				_, err := Build(in)
				must.Err(t, err, row.refused)
				return
			}
			for i := range 3 { // and it stays so
				p := planned(t, in)
				parked := ""
				for k, s := range p.Slots {
					if was := before.Slots[k]; s.Name != was.Name || s.CPUs != was.CPUs || s.MemoryBytes != was.MemoryBytes {
						t.Errorf("%s has %s and %d bytes, and had %s and %d", s.Name, s.CPUs, s.MemoryBytes, was.CPUs, was.MemoryBytes)
					}
					if s.Parked != "" {
						parked += s.Name + ": " + s.Parked
					}
				}
				must.Equal(t, row.parked, parked)
				if warnings := strings.Join(p.Warnings, "\n"); i == 0 || row.parked != "" {
					must.Contain(t, warnings, row.said)
				}
				in.Bindings = bindingsOf(t, p)
			}
			in.Inventory = inv // the old cards are back
			if diff := cmp.Diff(shapes(before), shapes(planned(t, in))); diff != "" {
				t.Errorf("with the old cards back: %s", diff)
			}
		})
	}
}

// TestNewInstance makes a MIG instance beside one that a slot has. Whatever selects the GPUs, the plan names it.
func TestNewInstance(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	for name, cfg := range map[string]config.Config{
		"all": {}, "a count": {GPUCount: 8}, "a list": {GPUs: config.GPUs{List: []string{"0", "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := build(t, divided(inv, 1, map[int][]int{1: {4}}), cfg, nil, true)
			after := build(t, divided(inv, 1, map[int][]int{1: {4, 3}}), cfg, bindingsOf(t, before), false)
			must.Equal(t, shapes(before), shapes(after))
			must.Contain(t, strings.Join(after.Warnings, "\n"), "MIG instance 3g.69gb at memory slice 4")
		})
	}
}
