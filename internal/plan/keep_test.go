package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
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

// TestMemoryBetweenBoots checks that slots keep their memory while the machine's differs only as it may between
// two boots.
func TestMemoryBetweenBoots(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	node := inv.Memory.Nodes[0].MemoryBytes / mib
	small := config.Config{Reserve: config.Reserve{Memory: 4 << 30}}
	ask := func(more int64) config.Config { // than an even share
		return config.Config{MemoryPerSlot: config.Size(build(t, inv, config.Config{}, nil, false).Slots[0].MemoryBytes + more*mib)}
	}
	for name, row := range map[string]struct {
		then, now config.Config
		mibs      []int64
		kept      bool
	}{
		"the same":           {mibs: []int64{0, 0}, kept: true},
		"a little more":      {mibs: []int64{5, 2}, kept: true},
		"just within":        {mibs: []int64{node / 40, node / 40}, kept: true},
		"a little less":      {mibs: []int64{-30, -70}, kept: true},
		"in another place":   {mibs: []int64{400, -400}, kept: true},
		"half the reserve":   {then: small, now: small, mibs: []int64{-1000, -1000}, kept: true},
		"half of a node's":   {then: small, now: small, mibs: []int64{1000, -1000}, kept: true},
		"over half of it":    {then: small, now: small, mibs: []int64{-1100, -1100}},
		"over half of one's": {then: small, now: small, mibs: []int64{1100, -1100}},
		"a bank less":        {mibs: []int64{-node / 16, -node / 16}},
		"a bank more":        {mibs: []int64{node / 16, node / 16}},
		"another reserve":    {then: config.Config{Reserve: config.Reserve{Memory: 5 << 30}}, now: small, mibs: []int64{0, 0}},
		"the same reserve":   {then: small, now: small, mibs: []int64{30, 70}, kept: true},
		"a share of its own": {now: config.Config{MemoryPerSlot: 200 << 30}, mibs: []int64{0, 0}},
		"the same request":   {then: config.Config{MemoryPerSlot: 200 << 30}, now: config.Config{MemoryPerSlot: 200 << 30}, mibs: []int64{9, 9}, kept: true},
		"nearly met":         {then: ask(9000), now: ask(9000), mibs: []int64{5, 2}, kept: true},
		"nearly met, less":   {then: ask(9000), now: ask(9000), mibs: []int64{-40, -3}, kept: true},
		"met by now":         {then: ask(9000), now: ask(9000), mibs: []int64{node / 20, node / 20}},
		"another request":    {then: ask(9000), now: ask(9001), mibs: []int64{0, 0}},
		"no more a request":  {then: ask(-9), now: config.Config{}, mibs: []int64{0, 0}},
		"fewer slots":        {now: config.Config{GPUCount: 7}, mibs: []int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := build(t, inv, row.then, nil, false)
			in := input(booted(inv, row.mibs...), row.now)
			in.Bindings = bindingsOf(t, before)
			after := planned(t, in)
			want, err := Build(input(in.Inventory, row.now))
			must.Do(t, err)
			sum := func(p *Plan) int64 { return p.Reserved.MemoryBytes + int64(len(p.Slots))*p.Slots[0].MemoryBytes }
			must.Equal(t, sum(want), sum(after))
			if row.kept {
				before.Reserved.MemoryBytes, after.Reserved.MemoryBytes = 0, 0
				must.Equal(t, before, after)
			} else if got := after.Slots[0].MemoryBytes; got != want.Slots[0].MemoryBytes {
				t.Errorf("a slot has %s, want %s as on a new machine", config.Size(got), config.Size(want.Slots[0].MemoryBytes))
			}
		})
	}
}

// TestMemoryOfShapes checks that slots which are parts of a GPU, or several, keep no more than half of the
// system's reserve between two boots, and no less.
func TestMemoryOfShapes(t *testing.T) {
	t.Parallel()
	mig, whole := readMachine(t, machinetest.B200MIG()), readMachine(t, machinetest.B200x8())
	small := config.Config{Reserve: config.Reserve{Memory: 4 << 30}}
	fours, eight := small, small
	fours.GPUsPerSlot, eight.GPUsPerSlot = 4, 8
	for name, row := range map[string]struct {
		inv  *inventory.Inventory
		cfg  config.Config
		less int64 // MiB on each node
		kept bool
	}{
		"instances":                     {mig, small, 1000, true},
		"instances, over half":          {mig, small, 1100, false},
		"instances, over all":           {mig, small, 2500, false},
		"instances, default reserve":    {mig, config.Config{}, 20000, true},
		"instances, over half of it":    {mig, config.Config{}, 30000, false},
		"compute instances":             {divided(whole, 2, map[int][]int{0: {1, 2, 4}}), small, 1000, true},
		"the same sizes, over half":     {divided(whole, 2, map[int][]int{0: {1, 2, 4}}), small, 1100, false},
		"groups of four":                {whole, fours, 1000, true},
		"groups of four, over half":     {whole, fours, 1100, false},
		"a group of all GPUs":           {whole, eight, 1000, true},
		"a group of all GPUs, and more": {whole, eight, 1100, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := build(t, row.inv, row.cfg, nil, false)
			in := input(booted(row.inv, -row.less, -row.less), row.cfg)
			in.Bindings = bindingsOf(t, before)
			after := planned(t, in)
			left := in.Inventory.Memory.TotalBytes
			for i, s := range after.Slots {
				left -= s.MemoryBytes
				if kept := s.MemoryBytes == before.Slots[i].MemoryBytes; kept != row.kept {
					t.Errorf("%s has %s and had %s", s.Name, config.Size(s.MemoryBytes), config.Size(before.Slots[i].MemoryBytes))
				}
			}
			if half := before.Reserved.MemoryBytes / 2; left < half-10*mib || left != after.Reserved.MemoryBytes {
				t.Errorf("%s are left for the system, and the plan says %s; want at least %s", config.Size(left), config.Size(after.Reserved.MemoryBytes), config.Size(half))
			}
		})
	}
}

// TestMemoryBesideLostGPU loses a GPU whose memory is a NUMA node: the other slots keep their memory, although
// the machine's differs as it may between two boots, and the other GPUs' nodes may have other numbers.
func TestMemoryBesideLostGPU(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.GB200())
	before := build(t, inv, config.Config{}, nil, false)
	for name, renumber := range map[string]int{"lost": 0, "lost, and others renumbered": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := booted(inv, -30, -30)
			lost.GPUs = slices.Clone(inv.GPUs[1:])
			lost.Memory.Nodes = slices.DeleteFunc(lost.Memory.Nodes, func(n inventory.NUMANode) bool { return n.ID == inv.GPUs[0].MemoryNode })
			for i := range lost.GPUs {
				lost.GPUs[i].MemoryNode -= renumber
			}
			for i := range lost.Memory.Nodes {
				if n := &lost.Memory.Nodes[i]; n.CPUs == "" {
					n.ID -= renumber
				}
			}
			in := input(lost, config.Config{})
			in.Bindings = bindingsOf(t, before)
			after := planned(t, in)
			must.Contain(t, after.Slots[0].Parked, "is missing")
			for i, s := range after.Slots {
				if was := before.Slots[i]; s.CPUs != was.CPUs || s.MemoryBytes != was.MemoryBytes {
					t.Errorf("%s has %s and %s, and had %s and %s", s.Name, s.CPUs, config.Size(s.MemoryBytes), was.CPUs, config.Size(was.MemoryBytes))
				}
			}
			in = input(booted(inv, -40, 20), config.Config{}) // the GPU is back
			in.Bindings = bindingsOf(t, after)
			back := planned(t, in)
			must.Equal(t, before.Slots, back.Slots)
		})
	}
	off := booted(inv, -30, -30) // its memory is not, which the kernel accepts for no slot
	at := slices.IndexFunc(off.Memory.Nodes, func(n inventory.NUMANode) bool { return n.ID == inv.GPUs[0].MemoryNode })
	off.Memory.Nodes[at].MemoryBytes = 0
	in := input(off, config.Config{})
	in.Bindings = bindingsOf(t, before)
	after := planned(t, in)
	must.Equal(t, before.Slots[1:], after.Slots[1:])
	in = input(booted(inv, -40, 20), config.Config{}) // it is back
	in.Bindings = bindingsOf(t, after)
	must.Equal(t, before.Slots, planned(t, in).Slots)
	if a, b := before.Slots[0], after.Slots[0]; a.MemoryBytes != b.MemoryBytes || a.MemoryNodes == b.MemoryNodes {
		t.Errorf("%s has %s of nodes %s, and had %s of %s", b.Name, config.Size(b.MemoryBytes), b.MemoryNodes, config.Size(a.MemoryBytes), a.MemoryNodes)
	}
}

// TestMemoryOfALostBank takes most of a node's memory away, which is not the same although each slot gets what was asked for.
func TestMemoryOfALostBank(t *testing.T) {
	t.Parallel()
	inv, cfg := readMachine(t, machinetest.DGXA100()), config.Config{MemoryPerSlot: 16 << 30}
	before := build(t, inv, cfg, nil, false)
	at := slices.IndexFunc(inv.Memory.Nodes, func(n inventory.NUMANode) bool { return fmt.Sprint(n.ID) == before.Slots[0].MemoryNodes })
	less := make([]int64, at+1)
	less[at] = 4<<10 - inv.Memory.Nodes[at].MemoryBytes/mib
	in := input(booted(inv, less...), cfg)
	want := planned(t, in)
	if want.Slots[0].MemoryNodes == before.Slots[0].MemoryNodes {
		t.Fatalf("slot gpu0 still has the nodes %s, so this shows nothing", want.Slots[0].MemoryNodes)
	}
	in.Bindings = bindingsOf(t, before)
	must.Equal(t, want.Slots, planned(t, in).Slots)
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

// TestSlotsOfOneGPU reads a slots.json in which slots share a GPU.
func TestSlotsOfOneGPU(t *testing.T) {
	t.Parallel()
	whole, mig := machinetest.B200x8(), machinetest.B200MIG()
	for name, row := range map[string]struct {
		machine machinetest.Machine
		do      func(bindings []Binding)
		parked  []string
	}{
		"the same":           {whole, func(k []Binding) { k[3].Member = k[1].Member }, []string{"gpu3"}},
		"not in their order": {whole, func(k []Binding) { k[3].Member = k[1].Member; slices.Reverse(k) }, []string{"gpu3"}},
		"at another address": {whole, func(k []Binding) { k[3].Member = k[1].Member; k[3].PCI = "0000:ff:00.0" }, []string{"gpu3"}},
		"in other letters":   {whole, func(k []Binding) { k[3].Member = k[1].Member; k[3].UUID = strings.ToLower(k[3].UUID) }, []string{"gpu3"}},
		"three of them":      {whole, func(k []Binding) { k[3].Member, k[5].Member = k[1].Member, k[1].Member }, []string{"gpu3", "gpu5"}},
		"twice in one":       {whole, func(k []Binding) { k[0].Others = []Member{k[0].Member} }, []string{}},
		"beside its own":     {whole, func(k []Binding) { k[0].Others = []Member{k[2].Member} }, nil},
		"an instance":        {mig, func(k []Binding) { k[3].Member = k[1].Member }, []string{"gpu3"}},
		"a whole and a part": {mig, func(k []Binding) { k[1].MIG = nil }, nil},
		"one number":         {whole, func(k []Binding) { k[3].GPU = k[1].GPU }, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inv := readMachine(t, row.machine)
			before := build(t, inv, config.Config{Queue: "q"}, nil, false)
			bindings := bindingsOf(t, before)
			row.do(bindings.Slots)
			in := input(inv, config.Config{Queue: "q"})
			text, err := json.Marshal(bindings)
			must.Do(t, err)
			in.Bindings, err = ParseBindings(text)
			must.Do(t, err)
			after := planned(t, in)
			var parked []string
			owner := map[string]string{}
			for _, s := range after.Slots {
				if s.Parked != "" {
					parked = append(parked, s.Name)
					continue
				}
				if was := before.Slots[min(s.Index, len(before.Slots)-1)]; row.parked != nil && (was.CPUs != s.CPUs || was.MemoryBytes != s.MemoryBytes) {
					t.Errorf("%s has the CPUs %s and had %s", s.Name, s.CPUs, was.CPUs)
				}
				for _, g := range s.GPUs {
					if was := owner[g.Name()]; was != "" {
						t.Errorf("%s and %s serve %s", was, s.Name, g.Name())
					}
					owner[g.Name()] = s.Name
				}
			}
			if row.parked != nil && !slices.Equal(parked, row.parked) {
				t.Errorf("parked are %q, want %q; %q", parked, row.parked, after.Warnings)
			}
			for _, s := range parked {
				must.Contain(t, strings.Join(after.Warnings, "\n"), fmt.Sprintf("slot %s is parked: ", s))
			}
		})
	}
}

// TestLast reads the inventory that a plan keeps, and what cannot be one.
func TestLast(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.GB200())
	p := build(t, inv, config.Config{}, nil, false)
	text := fileOf(p, LastPath)
	last, err := ParseLast([]byte(text))
	must.Do(t, err)
	must.Equal(t, inv.Memory, last.Memory)
	must.Equal(t, inv.CPU.List, last.CPU.List)
	in := input(booted(inv, 5, -7), config.Config{}) // what changes while nothing does
	in.Bindings = bindingsOf(t, p)
	in.Inventory.GPUs, in.Inventory.Disks = slices.Clone(inv.GPUs), slices.Clone(inv.Disks)
	in.Inventory.GPUs[0].Processes, in.Inventory.Kernel = 7, "7.0.1"
	in.Inventory.Disks[0].FreeBytes /= 2
	in.Inventory.CPU.Model = "another"
	in.Inventory.Software.Agent.Keys = append(slices.Clone(inv.Software.Agent.Keys), "new-key")
	d := &in.Inventory.Software.Docker
	d.CDIFaults = map[string]inventory.CDIFault{"nvidia.com/gpu=all": {Detail: "stale"}}
	d.APIVersion, d.CDIDirs, d.CDIDevices = "1.99", append(d.CDIDirs, "/x"), append(slices.Clone(d.CDIDevices), "vendor.com/thing=7")
	must.Equal(t, text, fileOf(planned(t, in), LastPath))
	for name, text := range map[string]string{"cut": text[:len(text)/2], "nothing": `{"written_by": "kbnode"}`, "another schema": strings.Replace(text, `"schema":1`, `"schema":2`, 1)} {
		if _, err := ParseLast([]byte(text)); err == nil || !strings.Contains(err.Error(), LastPath) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMemoryThatCame adds memory that no slot can use, and takes it away: the reserve is what slots do not have.
func TestMemoryThatCame(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	more := booted(inv)
	more.Memory.Nodes = append(more.Memory.Nodes, inventory.NUMANode{ID: 2, MemoryBytes: 512 << 30, Distances: []int{30, 30, 10}})
	more.Memory.TotalBytes += 512 << 30
	in := input(inv, config.Config{})
	in.Bindings = bindingsOf(t, build(t, more, config.Config{}, nil, false))
	must.Equal(t, build(t, inv, config.Config{}, nil, false).Reserved, planned(t, in).Reserved)
}

// TestMemoryAskedForLater doubles the memory of a node whose slots have what they asked for, and then asks for more.
func TestMemoryAskedForLater(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	double := booted(inv, inv.Memory.Nodes[0].MemoryBytes/mib, inv.Memory.Nodes[1].MemoryBytes/mib)
	ask := func(inv *inventory.Inventory, gib int64, last *Plan) *Plan {
		in := input(inv, config.Config{MemoryPerSlot: config.Size(gib << 30)})
		if last != nil {
			in.Bindings = bindingsOf(t, last)
		}
		return planned(t, in)
	}
	p := ask(double, 250, ask(double, 100, ask(inv, 100, nil)))
	must.Equal(t, int64(250<<30), p.Slots[0].MemoryBytes)
}

// TestLastIsMissing takes the last inventory from a node: what could not be read then is unknown, not absent.
func TestLastIsMissing(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	bindings := bindingsOf(t, build(t, inv, config.Config{}, nil, false))
	bindings.Last = nil
	for _, subject := range []string{"", inventory.SubjectDocker, inventory.SubjectCDI, inventory.SubjectFiles, inventory.SubjectCPU, inventory.SubjectMemory} {
		one := *inv
		one.Problems, one.Unread = []inventory.Problem{{Subject: subject, Detail: "timeout"}}, []string{subject}
		in := input(&one, config.Config{})
		in.Bindings = bindings
		if _, err := Build(in); (err == nil) != (subject == "") || err != nil && !strings.Contains(err.Error(), "(timeout)") {
			t.Errorf("%q: %v", subject, err)
		}
	}
}

// TestNameless plans a machine whose network has not given it a name yet: a new one, and one whose name was known.
func TestNameless(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	inv.Hostname = "localhost.localdomain"
	warns := func(p *Plan) bool {
		return strings.Contains(strings.Join(p.Warnings, "\n"), "host name is localhost.localdomain")
	}
	if p := build(t, inv, config.Config{}, nil, false); !warns(p) {
		t.Errorf("new: %q", p.Warnings)
	}
	known := &Bindings{Last: &inventory.Inventory{Hostname: "vendor-1"}}
	if p := build(t, inv, config.Config{}, known, false); warns(p) || p.Slots[0].Agent != "vendor-1-gpu0" {
		t.Errorf("known: %s, %q", p.Slots[0].Agent, p.Warnings)
	}
}
