package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestHardwareTags(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	nvidia := &inventory.Inventory{NVIDIA: &inventory.NVIDIA{DriverVersion: "580.95.05", CUDAVersion: "13.0"}}
	amd := &inventory.Inventory{AMD: &inventory.AMD{DriverVersion: "6.12.12"}}
	b200 := SlotGPU{Vendor: "nvidia", Arch: "sm_100", Memory: 183359 * mib}
	with := func(g SlotGPU, f func(g *SlotGPU)) SlotGPU { f(&g); return g }
	for name, tt := range map[string]struct {
		gpus []SlotGPU
		inv  *inventory.Inventory
		want string
	}{
		"B200":                {[]SlotGPU{b200}, nvidia, "sm=100 gpu-memory=180 driver=580.95.05 cuda=13.0"},
		"two":                 {[]SlotGPU{b200, b200}, nvidia, "sm=100 gpu-memory=180 driver=580.95.05 cuda=13.0"},
		"unlike":              {[]SlotGPU{b200, {Vendor: "nvidia", Arch: "sm_90", Memory: 81559 * mib}}, nvidia, "driver=580.95.05 cuda=13.0"},
		"one unread":          {[]SlotGPU{b200, {Vendor: "nvidia"}}, nvidia, "driver=580.95.05 cuda=13.0"},
		"H100":                {[]SlotGPU{{Vendor: "nvidia", Arch: "sm_90", Memory: 81559 * mib}}, nvidia, "sm=90 gpu-memory=80 driver=580.95.05 cuda=13.0"},
		"H200":                {[]SlotGPU{{Vendor: "nvidia", Memory: 143771 * mib}}, nvidia, "gpu-memory=141 driver=580.95.05 cuda=13.0"},
		"MIG":                 {[]SlotGPU{with(b200, func(g *SlotGPU) { g.Part, g.Memory = "1c.7g.80gb", 80896*mib })}, nvidia, "sm=100 gpu-memory=80 driver=580.95.05 cuda=13.0"},
		"MIG without profile": {[]SlotGPU{{Vendor: "nvidia", Part: "1g"}}, nvidia, "driver=580.95.05 cuda=13.0"},
		"without NVML":        {[]SlotGPU{{Vendor: "nvidia"}}, &inventory.Inventory{NVIDIA: &inventory.NVIDIA{DriverVersion: "580.95.05"}}, "driver=580.95.05"},
		"no driver":           {[]SlotGPU{b200}, &inventory.Inventory{}, "sm=100 gpu-memory=180"},
		"MI300X":              {[]SlotGPU{{Vendor: "amd", Arch: "gfx942", Memory: 206141652992}}, amd, "gfx=942 gpu-memory=192 driver=6.12.12"},
		"kernel's amdgpu":     {[]SlotGPU{{Vendor: "amd", Arch: "gfx90a", Memory: 4 * mib}}, &inventory.Inventory{AMD: &inventory.AMD{}}, "gfx=90a"},
		"hostile":             {[]SlotGPU{{Vendor: "nvidia", Arch: "sm_1,queue=x"}}, &inventory.Inventory{NVIDIA: &inventory.NVIDIA{DriverVersion: "5\n,a=b"}}, "sm=1-queue-x driver=5-a-b"},
		"no GPU":              {nil, nvidia, ""},
	} {
		if got := strings.Join(hardwareTags(Slot{GPUs: tt.gpus}, tt.inv), " "); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	s := Slot{GPUs: []SlotGPU{b200}, Queue: "q"}
	tags := agentTags(s, "box", "1", hardwareTags(s, nvidia), []string{"cuda=12.8", "site=x"})
	if slices.Contains(tags, "cuda=13.0") || !slices.Contains(tags, "cuda=12.8") || !slices.Contains(tags, "sm=100") {
		t.Errorf("a tag of the configuration does not replace its like: %v", tags)
	}
}

// TestHardwareTagsStay reads a machine while NVML does not answer: agents must not register again for that. Another
// driver's version of CUDA stays unknown.
func TestHardwareTagsStay(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	answer := *inv.NVIDIA // other tests read the same one
	answer.CUDAVersion, inv.NVIDIA = "13.0", &answer
	first := build(t, inv, config.Config{}, nil, false)
	bindings := bindingsOf(t, first)
	silent := *inv
	nv := *inv.NVIDIA
	nv.CUDAVersion, nv.NVMLError = "", "it hangs"
	silent.NVIDIA, silent.GPUs = &nv, slices.Clone(inv.GPUs)
	for i := range silent.GPUs {
		g := &silent.GPUs[i]
		g.Arch, g.MemoryBytes, g.NVML, g.Unread = "", 0, nil, true
	}
	second := build(t, &silent, config.Config{}, bindings, false)
	for i, s := range second.Slots {
		must.Equal(t, first.Slots[i].Tags, s.Tags)
	}
	// A driver that could not be read is the one of before.
	nv.DriverVersion, silent.Unread = "", []string{inventory.SubjectDriver}
	must.Equal(t, first.Slots[0].Tags, build(t, &silent, config.Config{}, bindings, false).Slots[0].Tags)
	rocm := readMachine(t, machinetest.MI300X())
	amd := *rocm.AMD
	amd.DriverVersion, rocm.AMD = "6.12.12", &amd
	before := build(t, rocm, config.Config{}, nil, false)
	unread := *rocm
	none := amd
	none.DriverVersion, unread.AMD, unread.Unread = "", &none, []string{inventory.SubjectDriver}
	must.Equal(t, before.Slots[0].Tags, build(t, &unread, config.Config{}, bindingsOf(t, before), false).Slots[0].Tags)
	unread.Unread = nil // it is the kernel's own now
	must.Equal(t, "", tagOf(build(t, &unread, config.Config{}, bindingsOf(t, before), false).Slots[0].Tags, "driver"))

	nv.DriverVersion, silent.Unread = "999.1", nil
	for _, s := range build(t, &silent, config.Config{}, bindings, false).Slots {
		if tagOf(s.Tags, "driver") != "999.1" || tagOf(s.Tags, "cuda") != "" || tagOf(s.Tags, "sm") != "100" {
			t.Errorf("%s has %v", s.Name, s.Tags)
		}
	}
}

// TestImageTag has agents name the image of their jobs where kbnode keeps it, and start again with another one.
func TestImageTag(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	id := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	plan := func(image, updates string, tags ...string) *Plan {
		in := input(inv, config.Config{Image: config.Image{AutoUpdate: updates}, Agent: config.Agent{Tags: tags}})
		in.Image = image
		return planned(t, in)
	}
	for _, tt := range []struct{ image, updates, want string }{
		{id("a"), "@daily", "aaaaaaaaaaaa"}, {id("a"), "", ""}, {id("a"), "off", ""}, {"", "@daily", ""},
		{"sha256:aa", "@daily", ""}, {id("A"), "@daily", ""}, {id("a") + "\n", "@daily", ""}, {id("a")[7:], "@daily", ""}, {id(","), "@daily", ""},
	} {
		for _, s := range plan(tt.image, tt.updates).Slots {
			if got := tagOf(s.Tags, ImageTag); got != tt.want {
				t.Errorf("%+v: %s has %q", tt, s.Name, got)
			}
		}
	}
	must.Equal(t, "mine", tagOf(plan(id("a"), "@daily", "image=mine").Slots[0].Tags, ImageTag))
	generation := func(p *Plan) string {
		i := slices.IndexFunc(p.Units, func(u Unit) bool { return u.Name == AgentUnit(0) })
		return p.Units[i].Generation
	}
	before, same, after := generation(plan(id("a"), "@daily")), generation(plan(id("a"), "@daily")), generation(plan(id("b"), "@daily"))
	if before != same || before == after {
		t.Errorf("agents with another image are %s, after %s and %s", after, before, same)
	}
}
