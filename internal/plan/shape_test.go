package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// divided returns a machine whose GPU i has MIG instances of these sizes, one
// after the other, in memory slices. serial changes their UUIDs.
func divided(inv *inventory.Inventory, serial int, layout map[int][]int) *inventory.Inventory {
	out := *inv
	out.GPUs = slices.Clone(inv.GPUs)
	out.Software.Docker.CDIDevices = slices.Clone(inv.Software.Docker.CDIDevices)
	for i, sizes := range layout {
		g := &out.GPUs[i]
		g.MIGMode, g.MIG = "on", nil
		start := 0
		for k, size := range sizes {
			uuid := fmt.Sprintf("MIG-%d-%d-%d", serial, i, k)
			g.MIG = append(g.MIG, inventory.MIG{
				UUID: uuid, Profile: fmt.Sprintf("%dg.%dgb", size, 23*size), GPUInstance: 7 + k, Slices: size, MemorySlices: size, Start: start,
				GPUCap: 100*i + 9*k + 3, ComputeCap: 100*i + 9*k + 4,
			})
			start += size
			out.Software.Docker.CDIDevices = append(out.Software.Docker.CDIDevices, "nvidia.com/gpu="+uuid)
		}
	}
	return &out
}

// shapes describes slots in a line each: "gpu3 b200x2 3,7 cpus=16 memory=4", in
// bytes/GiB.
func shapes(p *Plan) string {
	var b strings.Builder
	for _, s := range p.Slots {
		var gpus []string
		for _, g := range s.GPUs {
			name := fmt.Sprint(g.Number)
			if g.Instance != "" {
				name += "/" + g.Instance
			}
			gpus = append(gpus, name)
		}
		state := ""
		if s.Parked != "" {
			state = " parked: " + s.Parked
		}
		fmt.Fprintf(&b, "%s %s %s%s\n", s.Name, s.Queue, strings.Join(gpus, ","), state)
	}
	return b.String()
}

func build(t *testing.T, inv *inventory.Inventory, cfg config.Config, bindings *Bindings, reshape bool) *Plan {
	t.Helper()
	in := input(inv, cfg)
	in.Bindings, in.Reshape = bindings, reshape
	p := planned(t, in)
	checkPlan(t, inv, p)
	return p
}

func planned(t *testing.T, in Input) *Plan {
	t.Helper()
	p, err := Build(in)
	must.Do(t, err)
	return p
}

// fileOf returns the text of a planned file; "" if it is not planned.
func fileOf(p *Plan, path string) string {
	for _, f := range p.Files {
		if f.Path == path {
			return f.Content
		}
	}
	return ""
}

// checkPlan checks what is true of slots of any shape. What is reserved is in the golden files.
func checkPlan(t *testing.T, inv *inventory.Inventory, p *Plan) {
	t.Helper()
	var all cpuset.Set
	nodes, like := map[string]int{}, map[string]Slot{}
	for _, s := range p.Slots {
		set, _ := cpuset.Parse(s.CPUs)
		if set.Len() == 0 || !set.Disjoint(all) {
			t.Errorf("%s has CPUs %q, which are none or another's", s.Name, s.CPUs)
		}
		all = all.Union(set)
		for _, c := range inv.CPU.List {
			if set.Contains(c.ID) && c.Allowed && cpuset.Of(c.Siblings...).Difference(set).Len() > 0 {
				t.Errorf("%s has a part of core %d", s.Name, c.Core)
			}
		}
		if other, ok := like[s.Shape]; ok && s.MemoryBytes != other.MemoryBytes {
			t.Errorf("%s and %s are %s, with %d and %d bytes", s.Name, other.Name, s.Shape, s.MemoryBytes, other.MemoryBytes)
		} else if was, _ := cpuset.Parse(other.CPUs); ok && was.Len() != set.Len() {
			t.Errorf("%s and %s are %s, with CPUs %s and %s", s.Name, other.Name, s.Shape, s.CPUs, other.CPUs)
		}
		like[s.Shape] = s
		for _, d := range s.Devices() {
			if strings.Contains(d, "nvidia-cap") || strings.Contains(d, "renderD") {
				nodes[d]++
			}
		}
	}
	for _, g := range inv.GPUs {
		for _, in := range g.MIG { // compute instances share the GPU instance that they are in
			if d := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", in.GPUCap); in.ComputeInstance > 0 {
				nodes[d]--
			}
		}
	}
	for d, n := range nodes {
		if n > 1 {
			t.Errorf("%d slots have %s", n, d)
		}
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	b200 := readMachine(t, machinetest.B200x8())
	linked := *b200
	linked.GPUs = slices.Clone(b200.GPUs)
	for i := range linked.GPUs {
		linked.GPUs[i].Links = []string{linked.GPUs[i^2].PCI}
	}
	for name, tt := range map[string]struct {
		inv  *inventory.Inventory
		cfg  config.Config
		want string
	}{
		"pairs":                              {b200, config.Config{GPUsPerSlot: 2}, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\ngpu4 b200x2 4,5\ngpu6 b200x2 6,7\n"},
		"linked pairs":                       {&linked, config.Config{GPUsPerSlot: 2}, "gpu0 b200x2 0,2\ngpu1 b200x2 1,3\ngpu4 b200x2 4,6\ngpu5 b200x2 5,7\n"},
		"linked fours":                       {&linked, config.Config{GPUsPerSlot: 4}, "gpu0 b200x4 0,1,2,3\ngpu4 b200x4 4,5,6,7\n"},
		"all":                                {b200, config.Config{GPUsPerSlot: 8}, "gpu0 b200x8 0,1,2,3,4,5,6,7\n"},
		"one of four":                        {b200, config.Config{Groups: config.Groups{{"4", "5", "6", "7"}}}, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\ngpu4 b200x4 4,5,6,7\n"},
		"across nodes":                       {b200, config.Config{Groups: config.Groups{{"7", "0"}}, GPUsPerSlot: 3, Queue: "q"}, "gpu0 q 0,7\ngpu1 q 1,2,3\ngpu4 q 4,5,6\n"},
		"of those chosen":                    {b200, config.Config{GPUs: config.GPUs{List: []string{"1", "2", "6", "7"}}, GPUsPerSlot: 2}, "gpu1 b200x2 1,2\ngpu6 b200x2 6,7\n"},
		"of the first four":                  {b200, config.Config{GPUCount: 4, GPUsPerSlot: 2}, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\n"},
		"a number of GPUs, not of instances": {divided(b200, 1, map[int][]int{0: {1, 1}, 1: {1, 1}}), config.Config{GPUCount: 1}, "gpu0 b200-1g-23gb 0/MIG-1-0-0\ngpu1 b200-1g-23gb 0/MIG-1-0-1\n"},
		"without GPUs":                       {b200, config.Config{GPUs: config.GPUs{None: true}, Slots: 3}, "gpu0 cpu \ngpu1 cpu \ngpu2 cpu \n"},
		"a template":                         {b200, config.Config{Groups: config.Groups{{"0", "1", "2", "3", "4", "5", "6"}}, Queue: "{vendor}-{gpu}-{shape}-{index}"}, "gpu0 nvidia-b200-b200x7-0 0,1,2,3,4,5,6\ngpu7 nvidia-b200-b200-7 7\n"},
		"CPUs without any":                   {readMachine(t, machinetest.NoGPU()), config.Config{GPUs: config.GPUs{None: true}, Slots: 2, Queue: "cpu-{index}"}, "gpu0 cpu-0 \ngpu1 cpu-1 \n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := build(t, tt.inv, tt.cfg, nil, false)
			must.Equal(t, tt.want, shapes(p))
			must.Equal(t, p, build(t, tt.inv, tt.cfg, bindingsOf(t, p), false))
		})
	}
}

// TestGroupHasAllOfItsGPUs compares a group with one slot per GPU.
func TestGroupHasAllOfItsGPUs(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	single, pairs := build(t, inv, config.Config{}, nil, false), build(t, inv, config.Config{GPUsPerSlot: 2}, nil, false)
	for i, s := range pairs.Slots {
		a, b := single.Slots[2*i], single.Slots[2*i+1]
		cpusA, _ := cpuset.Parse(a.CPUs)
		cpusB, _ := cpuset.Parse(b.CPUs)
		if s.CPUs != cpusA.Union(cpusB).String() || s.MemoryBytes != a.MemoryBytes+b.MemoryBytes {
			t.Errorf("%s has %s and %d bytes; alone they have %s, %s and %d each", s.Name, s.CPUs, s.MemoryBytes, a.CPUs, b.CPUs, a.MemoryBytes)
		}
		for _, node := range append(a.Devices(), b.Devices()...) {
			if !slices.Contains(s.Devices(), node) {
				t.Errorf("%s has not %s", s.Name, node)
			}
		}
		pol := policyOf(t, pairs, s.Index)
		if want := []string{"nvidia.com/gpu=" + a.GPUs[0].UUID, "nvidia.com/gpu=" + b.GPUs[0].UUID}; !slices.Equal(pol.CDIDevices, want) {
			t.Errorf("containers of %s get %q, want %q", s.Name, pol.CDIDevices, want)
		}
		if want := "CUDA_VISIBLE_DEVICES=" + a.GPUs[0].UUID + "," + b.GPUs[0].UUID; !slices.Contains(pol.Env, want) {
			t.Errorf("%s: environment %q lacks %s", s.Name, pol.Env, want)
		}
		if !slices.Contains(s.Tags, "gpus=2") {
			t.Errorf("%s has the tags %q", s.Name, s.Tags)
		}
	}
}

func TestShapeRefusals(t *testing.T) {
	t.Parallel()
	b200 := readMachine(t, machinetest.B200x8())
	mixed := *b200
	mixed.GPUs = slices.Clone(b200.GPUs)
	mixed.GPUs[7].Model = "NVIDIA H100 NVL"
	for name, tt := range map[string]struct {
		inv *inventory.Inventory
		cfg config.Config
		err string
	}{
		"not shared out":  {b200, config.Config{GPUsPerSlot: 3}, "gpus_per_slot: 8 GPUs cannot be divided into groups of 3"},
		"two models":      {&mixed, config.Config{Groups: config.Groups{{"6", "7"}}}, "groups: GPU 6 is NVIDIA B200 and GPU 7 is NVIDIA H100 NVL; group GPUs of the same kind"},
		"no such GPU":     {b200, config.Config{Groups: config.Groups{{"6", "8"}}}, "groups: GPU 8 does not exist: this machine has GPUs 0 to 7"},
		"two names":       {b200, config.Config{Groups: config.Groups{{"6", b200.GPUs[6].PCI}}}, "is listed twice"},
		"an instance":     {divided(b200, 1, map[int][]int{6: {1, 1}}), config.Config{Groups: config.Groups{{"6:0", "7"}}}, "groups: GPU 6 is in MIG mode"},
		"no such part":    {divided(b200, 1, map[int][]int{6: {1, 1}}), config.Config{GPUs: config.GPUs{List: []string{"6:2"}}}, "GPU 6 has no part 2: it has 2"},
		"a part of all":   {b200, config.Config{GPUs: config.GPUs{List: []string{"6:0"}}}, "GPU 6 has no part 0"},
		"too many parts":  {divided(b200, 1, map[int][]int{6: slices.Repeat([]int{1}, 64)}), config.Config{}, "GPU 6 is divided into more instances than it has cores"},
		"slots with GPUs": {b200, config.Config{Slots: 4}, "also write gpus: none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Build(input(tt.inv, tt.cfg))
			must.Err(t, err, tt.err)
		})
	}
}

func policyOf(t *testing.T, p *Plan, slot int) (pol JobPolicy) {
	t.Helper()
	must.Do(t, json.Unmarshal([]byte(fileOf(p, SlotPolicyPath(slot))), &pol))
	return pol
}

// TestMIGClocks locks no clocks of a GPU in MIG mode, which the driver refuses. What slots get of
// divided GPUs is in the golden files of b200-mig and h100-mixed.
func TestMIGClocks(t *testing.T) {
	t.Parallel()
	inv := divided(readMachine(t, machinetest.B200x8()), 1, map[int][]int{2: {4, 3, 1}})
	p := build(t, inv, config.Config{Hygiene: config.Hygiene{Clocks: config.ClocksBase}}, nil, false)
	for i, g := range inv.GPUs {
		locked := slices.ContainsFunc(p.Tunables, func(t Tunable) bool { return t.Name == GPUTunable(g.UUID, Clocks) })
		if locked == (i == 2) {
			t.Errorf("GPU %d: clocks are locked: %t", i, locked)
		}
	}
}

// TestComputeInstances divides an instance further: its parts share what it has.
func TestComputeInstances(t *testing.T) {
	t.Parallel()
	inv := divided(readMachine(t, machinetest.B200x8()), 1, map[int][]int{2: {4, 4}})
	g := &inv.GPUs[2]
	g.MIG[1].Profile = "1c.4g.92gb"
	other := g.MIG[1]
	other.UUID, other.ComputeInstance, other.ComputeCap = "MIG-other", 1, other.ComputeCap+1
	g.MIG = append(g.MIG, other)
	inv.Software.Docker.CDIDevices = append(inv.Software.Docker.CDIDevices, "nvidia.com/gpu=MIG-other")
	p := build(t, inv, config.Config{Queue: "{shape}"}, nil, false)
	first, second, third := p.Slots[2], p.Slots[3], p.Slots[4]
	if second.GPUs[0].Instance != "MIG-1-2-1" || third.GPUs[0].Instance != "MIG-other" {
		t.Fatalf("slots are %+v", p.Slots)
	}
	if all := cpuCount(t, first.CPUs) * 2; cpuCount(t, second.CPUs) != all/8*2 || cpuCount(t, third.CPUs) != cpuCount(t, second.CPUs) {
		t.Errorf("CPUs %s, %s and %s", first.CPUs, second.CPUs, third.CPUs)
	}
	if second.MemoryBytes != third.MemoryBytes || first.MemoryBytes-2*second.MemoryBytes > 2<<20 {
		t.Errorf("%d, %d and %d bytes", first.MemoryBytes, second.MemoryBytes, third.MemoryBytes)
	}
}

// TestReshape follows a machine whose GPUs are divided again.
func TestReshape(t *testing.T) {
	t.Parallel()
	whole := readMachine(t, machinetest.B200x8())
	whole.GPUs = whole.GPUs[:4]
	mig := func(serial int, sizes ...int) *inventory.Inventory {
		return divided(whole, serial, map[int][]int{1: sizes})
	}
	without := func(inv *inventory.Inventory, i int) *inventory.Inventory {
		out := *inv
		out.GPUs = slices.Delete(slices.Clone(inv.GPUs), i, i+1)
		return &out
	}
	dead := *mig(1)
	dead.GPUs = slices.Clone(dead.GPUs)
	dead.GPUs[1].Healthy, dead.GPUs[1].Error, dead.GPUs[1].MIGMode = false, "lost", ""
	const uuid, address = "GPU-29010000-0000-4000-8000-000000000002", "0000:43:00.0"
	const second = "gpu4 b200-3g-69gb 1/MIG-1-1-1\n"
	asBound := "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-1-1-0\ngpu2 b200 2\ngpu3 b200 3\n" + second
	now := "GPU " + uuid + " is in MIG mode now; turn it off with sudo nvidia-smi -i " + uuid + " -mig 0, or run sudo kbnode install to make slots from its instances"
	missing := func(profile string, start int) string {
		return fmt.Sprintf(" parked: MIG instance %s at memory slice %d of GPU %s is missing; create it again, or run sudo kbnode install to make slots from what there is", profile, start, uuid)
	}
	replaced := func(uuid, pci string, sizes ...int) *inventory.Inventory {
		out := mig(2, sizes...)
		out.GPUs[1].UUID, out.GPUs[1].PCI = uuid, pci
		return out
	}
	together := func(serial, second string) string {
		return "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-" + serial + "-1-0\ngpu2 b200-3g-69gb 1" + second + "\ngpu3 b200 2\ngpu4 b200 3\n"
	}
	part := config.Config{GPUs: config.GPUs{List: []string{"0", "1:1"}}}
	partOf := func(state string) string { return "gpu0 b200 0\ngpu2 b200-3g-69gb 1" + state + "\n" }
	upper := *mig(4, 4, 3)
	upper.GPUs[1].MIG = upper.GPUs[1].MIG[1:]
	elsewhere := *whole
	elsewhere.GPUs = slices.Clone(whole.GPUs)
	elsewhere.GPUs[1].UUID, elsewhere.GPUs[1].PCI = "GPU-new", "0000:99:00.0"
	away := " parked: GPU " + uuid + " at 0000:43:00.0 is missing"
	for name, steps := range map[string][]struct {
		inv     *inventory.Inventory
		cfg     config.Config
		reshape bool
		want    string
	}{
		"a GPU is divided": {
			{whole, config.Config{}, true, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
			{mig(1, 4, 3), config.Config{}, false, "gpu0 b200 0\ngpu1 b200 1 parked: " + now + "\ngpu2 b200 2\ngpu3 b200 3\n"},
			{mig(1, 4, 3), config.Config{}, true, asBound},
			{mig(2, 4, 3), config.Config{}, false, strings.ReplaceAll(asBound, "MIG-1", "MIG-2")}, // recreated
			{whole, config.Config{}, false, "gpu0 b200 0\ngpu1 b200-4g-92gb 1" + missing("4g.92gb", 0) + "\ngpu2 b200 2\ngpu3 b200 3\ngpu4 b200-3g-69gb 1" + missing("3g.69gb", 4) + "\n"},
			{mig(3, 4, 3), config.Config{}, false, strings.ReplaceAll(asBound, "MIG-1", "MIG-3")},
			{whole, config.Config{}, true, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
		},
		"in another way": {
			{mig(1, 4, 3), config.Config{}, true, "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-1-1-0\ngpu2 b200-3g-69gb 1/MIG-1-1-1\ngpu3 b200 2\ngpu4 b200 3\n"},
			{mig(2, 4, 1, 2), config.Config{}, false, "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-2-1-0\ngpu2 b200-3g-69gb 1" + missing("3g.69gb", 4) + "\ngpu3 b200 2\ngpu4 b200 3\n"},
			{mig(2, 4, 1, 2), config.Config{}, true, "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-2-1-0\ngpu2 b200-1g-23gb 1/MIG-2-1-1\ngpu3 b200 2\ngpu4 b200 3\ngpu5 b200-2g-46gb 1/MIG-2-1-2\n"},
		},
		"a lost parent": {
			{mig(1, 4, 3), config.Config{}, true, "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-1-1-0\ngpu2 b200-3g-69gb 1/MIG-1-1-1\ngpu3 b200 2\ngpu4 b200 3\n"},
			{without(mig(1, 4, 3), 1), config.Config{}, true, "gpu0 b200 0\ngpu1 b200-4g-92gb 1" + away + "\ngpu2 b200-3g-69gb 1" + away + "\ngpu3 b200 2\ngpu4 b200 3\n"},
			{&dead, config.Config{}, true, "gpu0 b200 0\ngpu1 b200-4g-92gb 1 parked: GPU at 0000:43:00.0 does not answer: lost\ngpu2 b200-3g-69gb 1 parked: GPU at 0000:43:00.0 does not answer: lost\ngpu3 b200 2\ngpu4 b200 3\n"},
			{mig(1, 4, 3), config.Config{}, false, "gpu0 b200 0\ngpu1 b200-4g-92gb 1/MIG-1-1-0\ngpu2 b200-3g-69gb 1/MIG-1-1-1\ngpu3 b200 2\ngpu4 b200 3\n"},
		},
		"another instance": { // what slots have stays until an install
			{mig(1, 4), config.Config{}, true, strings.TrimSuffix(asBound, second)},
			{mig(1, 4, 3), config.Config{}, false, strings.TrimSuffix(asBound, second)},
			{mig(1, 4, 3), config.Config{}, true, asBound},
			{mig(1, 4, 3), config.Config{GPUs: config.GPUs{List: []string{"1:1"}}}, false, second},
			{mig(1, 4, 3), config.Config{GPUs: config.GPUs{List: []string{"1"}}}, false, second},
			{mig(1, 4, 3), config.Config{GPUs: config.GPUs{List: []string{"1:0", "1:1"}}}, false, "gpu1 b200-4g-92gb 1/MIG-1-1-0\n" + second},
		},
		"a part by its number": { // which is the same part while the GPU is dead, missing or divided in another way
			{mig(1, 4, 3), part, true, partOf("/MIG-1-1-1")},
			{&dead, part, false, partOf(" parked: GPU at 0000:43:00.0 does not answer: lost")},
			{without(whole, 1), part, false, partOf(away)},
			{mig(2, 4), part, false, partOf(missing("3g.69gb", 4))},
			{mig(3, 4, 3), part, false, partOf("/MIG-3-1-1")},
			{&upper, part, false, partOf("/MIG-4-1-1")},
			{mig(5, 4, 1, 2), part, true, "gpu0 b200 0\ngpu2 b200-1g-23gb 1/MIG-5-1-1\n"}, // an install counts again
			{mig(5, 4, 1, 2), config.Config{GPUs: config.GPUs{List: []string{"0", "1:2"}}}, false, "gpu0 b200 0\ngpu3 b200-2g-46gb 1/MIG-5-1-2\n"},
		},
		"a choice that is gone": {
			{whole, config.Config{GPUsPerSlot: 2}, true, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\n"},
			{whole, config.Config{}, false, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
		},
		"a replaced card elsewhere on the board": {
			{whole, config.Config{GPUsPerSlot: 2}, false, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\n"},
			{&elsewhere, config.Config{GPUsPerSlot: 2}, false, "gpu0 b200x2 0,1" + away + "\ngpu2 b200x2 2,3\n"},
			{whole, config.Config{GPUsPerSlot: 2}, true, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\n"},
		},
		"a replaced parent": {
			{mig(1, 4, 3), config.Config{}, true, together("1", "/MIG-1-1-1")},
			{replaced("GPU-new", address, 4), config.Config{}, false, together("2", missing("3g.69gb", 4))},
			{replaced("GPU-new", address, 4), config.Config{}, false, together("2", strings.ReplaceAll(missing("3g.69gb", 4), uuid, "GPU-new"))},
			{replaced("GPU-new", address, 4, 3), config.Config{}, false, together("2", "/MIG-2-1-1")},
		},
		"a moved parent": {
			{mig(1, 4, 3), config.Config{}, true, together("1", "/MIG-1-1-1")},
			{replaced(uuid, "0000:99:00.0", 4), config.Config{}, false, together("2", missing("3g.69gb", 4))},
			{replaced(uuid, "0000:99:00.0", 4, 3), config.Config{}, false, together("2", "/MIG-2-1-1")},
		},
		"a pair is parted": { // the second GPU gets the slot of its number, not the first that is free
			{whole, config.Config{GPUs: config.GPUs{List: []string{"1", "3"}}, GPUsPerSlot: 2}, true, "gpu1 b200x2 1,3\n"},
			{whole, config.Config{GPUs: config.GPUs{List: []string{"1", "3"}}}, false, "gpu1 b200 1\ngpu3 b200 3\n"},
		},
		"pairs and back": {
			{whole, config.Config{}, true, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
			{whole, config.Config{GPUsPerSlot: 2}, false, "gpu0 b200x2 0,1\ngpu2 b200x2 2,3\n"},
			{without(whole, 1), config.Config{GPUsPerSlot: 2}, false, "gpu0 b200x2 0,1" + away + "\ngpu2 b200x2 2,3\n"},
			{whole, config.Config{Groups: config.Groups{{"1", "2", "3"}}}, false, "gpu0 b200 0\ngpu1 b200x3 1,2,3\n"},
			{whole, config.Config{}, false, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
			{whole, config.Config{GPUs: config.GPUs{None: true}, Slots: 1}, false, "gpu0 cpu \n"},
			{whole, config.Config{}, false, "gpu0 b200 0\ngpu1 b200 1\ngpu2 b200 2\ngpu3 b200 3\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bindings *Bindings
			for i, s := range steps {
				p := build(t, s.inv, s.cfg, bindings, s.reshape)
				if diff := cmp.Diff(s.want, shapes(p)); diff != "" || p.GPUs > 5 {
					t.Fatalf("step %d: %d GPUs; %s", i, p.GPUs, diff)
				}
				bindings = bindingsOf(t, p)
				if name == "a choice that is gone" {
					bindings.Chosen = nil
				}
			}
		})
	}
}

// TestPartitions follows AMD GPUs from one partition mode to another.
func TestPartitions(t *testing.T) {
	t.Parallel()
	cpx, spx := readMachine(t, machinetest.MI300XCPX()), readMachine(t, machinetest.MI300X())
	p := build(t, cpx, config.Config{GPUs: config.GPUs{List: []string{"1", "7:5"}}}, nil, false)
	if two := build(t, cpx, config.Config{GPUCount: 2}, nil, false); len(two.Slots) != 16 || two.UsedGPUs() != 2 || two.GPUs != 8 {
		t.Errorf("2 GPUs are %d slots of %d of %d", len(two.Slots), two.UsedGPUs(), two.GPUs)
	}
	if len(p.Slots) != 9 || p.Slots[8].Index != 61 || p.Slots[8].GPUs[0].Partition != 5 || p.Slots[8].Queue != "mi300-cpx" {
		t.Errorf("slots are\n%s", shapes(p))
	}
	all := build(t, cpx, config.Config{}, nil, false)
	if len(all.Slots) != 64 {
		t.Fatalf("%d slots", len(all.Slots))
	}
	spx.GPUs, cpx.GPUs = slices.Clone(spx.GPUs), slices.Clone(cpx.GPUs)
	for i := range spx.GPUs { // the same cards
		spx.GPUs[i].UUID, spx.GPUs[i].PCI = cpx.GPUs[8*i].UUID, cpx.GPUs[8*i].PCI
	}
	parked := build(t, spx, config.Config{}, bindingsOf(t, all), false)
	for _, s := range parked.Slots {
		must.Contain(t, s.Parked, "is in SPX mode and was in CPX")
	}
	if again := build(t, spx, config.Config{}, bindingsOf(t, parked), true); len(again.Slots) != 8 || again.Slots[7].Parked != "" {
		t.Errorf("slots are\n%s", shapes(again))
	}
}

func TestMixedModels(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	inv.GPUs = slices.Clone(inv.GPUs[:4])
	inv.GPUs[2].Model, inv.GPUs[3].Model = "NVIDIA H100 NVL", "NVIDIA H100 NVL"
	p := build(t, inv, config.Config{}, nil, false)
	must.Equal(t, "gpu0 b200 0\ngpu1 b200 1\ngpu2 h100 2\ngpu3 h100 3\n", shapes(p))
	warned := func(cfg config.Config, text string) bool {
		return slices.ContainsFunc(build(t, inv, cfg, nil, false).Warnings, func(w string) bool { return strings.Contains(w, text) })
	}
	const mixed = "slots of different shapes (b200, h100) take jobs from one queue"
	if !warned(config.Config{Queue: "fast"}, mixed) || warned(config.Config{Queue: "{gpu}"}, mixed) || warned(config.Config{}, mixed) {
		t.Error("a queue for different GPUs is not warned of, or another is")
	}
}

// TestBindingsRefused reads a slots.json that no kbnode wrote.
func TestBindingsRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ text, want string }{
		"a slot twice":    {`{"schema": 1, "slots": [{"slot": 1, "uuid": "GPU-a"}, {"slot": 2, "uuid": "GPU-b"}, {"slot": 1, "uuid": "GPU-c"}]}`, "list slot 1 twice or out of range"},
		"below all slots": {`{"schema": 1, "slots": [{"slot": -1}]}`, "list slot -1 twice or out of range"},
		"above all slots": {`{"schema": 1, "slots": [{"slot": 4096}]}`, "list slot 4096 twice or out of range"},
		"another schema":  {`{"schema": 2, "slots": []}`, "were written by another version of kbnode"},
		"no JSON":         {`slots`, "read slot bindings " + BindingsPath},
		"cut":             {"", "end of JSON input; move the file away to bind the GPUs again"},
	} {
		if list, err := ParseBindings([]byte(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	if _, err := ParseBindings([]byte(`{"schema": 1, "slots": [{"slot": 0}, {"slot": 4095}]}`)); err != nil {
		t.Error(err)
	}
}

// TestShapesHold divides and groups machines at random.
func TestShapesHold(t *testing.T) {
	t.Parallel()
	machines := []*inventory.Inventory{readMachine(t, machinetest.B200x8()), readMachine(t, machinetest.HGXH100()), readMachine(t, machinetest.DGXA100())}
	r := rand.New(rand.NewPCG(9, 9))
	built := 0
	for range 120 {
		layout := map[int][]int{}
		for i := range 8 {
			if r.IntN(3) > 0 {
				continue
			}
			for left := 8; left > 0; {
				size := 1 + r.IntN(left)
				layout[i] = append(layout[i], size)
				left -= size
			}
		}
		inv := divided(machines[r.IntN(len(machines))], 1, layout)
		cfg := config.Config{GPUsPerSlot: 1 + r.IntN(3)}
		in := input(inv, cfg)
		p, err := Build(in)
		if err != nil {
			continue // covered by TestShapeRefusals
		}
		built++
		checkPlan(t, inv, p)
		in.Bindings = bindingsOf(t, p)
		again := planned(t, in)
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("kept slots of %v give another plan: %s", layout, diff)
		}
		if t.Failed() {
			t.Fatalf("layout %v, %d GPUs to a slot", layout, cfg.GPUsPerSlot)
		}
	}
	if built < 60 {
		t.Errorf("only %d of 120 were built", built)
	}
}

// TestInstancesInPairs checks that no core of a machine that hides SMT is in two slots: there, CPUs 2i and 2i+1 may
// be its threads. With fewer cores than instances, as few as possible are.
func TestInstancesInPairs(t *testing.T) {
	t.Parallel()
	hidden := *readMachine(t, machinetest.B200x8())
	hidden.OS.Virt = true
	hidden.CPU.List = slices.Clone(hidden.CPU.List)
	for i := range hidden.CPU.List {
		c := &hidden.CPU.List[i]
		c.Core, c.Siblings, c.Threads = c.ID, []int{c.ID}, 1
	}
	pairs := map[[2]int]int{{7, 8}: 3, {7, 10}: 2, {7, 12}: 1} // shared, by instances and CPUs of a GPU
	for _, layout := range [][]int{{1, 1, 1, 1, 1, 1, 1}, {3, 3}, {3, 2, 1, 1}, {2, 2, 2}, {4, 3}, {2, 1, 1, 1}} {
		for _, threads := range []int{0, 8, 10, 12, 14, 26} {
			inv := divided(&hidden, 1, map[int][]int{0: layout, 5: layout})
			p := build(t, inv, config.Config{CPUsPerSlot: threads}, nil, false)
			checkPlan(t, inv, p)
			owner := map[int]string{}
			for _, s := range p.Slots {
				set, _ := cpuset.Parse(s.CPUs)
				for _, id := range set.Ints() {
					owner[id] = s.Name
				}
			}
			var shared []int
			for id, name := range owner {
				if other := owner[id^1]; id%2 == 0 && other != "" && other != name {
					shared = append(shared, id)
				}
			}
			if want := 2 * pairs[[2]int{len(layout), threads}]; len(shared) != want { // of two GPUs
				t.Errorf("%v, %d CPUs: slots share CPUs %d and the next, want %d pairs", layout, threads, shared, want)
			}
		}
	}
}
