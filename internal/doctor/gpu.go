package doctor

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// gpuChecks ask for the drivers first, then for the GPUs, and last for how they
// are set.
var gpuChecks = slices.Concat(driverChecks, slotGPUChecks, fabricChecks, judgedChecks, modeChecks, amdChecks)

// ownVerdicts are those of the daemon whose cause group gpu looks at by itself.
var ownVerdicts = []string{"gpu.missing", "gpu.error", "gpu.mode", "node.driver", "node.nvml", "node.persistence", "node.unit"}

// isOwn says that a check of the group gpu tells of what a verdict is about, with what
// to type: nobody else repeats it.
func isOwn(m *Machine, v health.Verdict) bool {
	if v.Check != "gpu.lost" && v.Check != "gpu.recovery" || m.Inventory == nil {
		return slices.Contains(ownVerdicts, v.Check)
	}
	f := fleetOf(m, "") // those that do not answer now are the business of gpu-answers
	bus := health.ReadBus(m.Root, f.gpus)
	return slices.ContainsFunc(f.gpus, func(g inventory.GPU) bool {
		same := v.GPU == g.PCI || v.GPU == g.UUID || slices.ContainsFunc(f.slots[g.PCI], func(k int) bool { return slices.Contains(v.Slots, k) })
		return same && (!g.Healthy || bus[g.PCI].Dead)
	})
}

// fleet are the GPUs of the slots, or all of them before there are slots. A GPU of
// several partitions is there once.
type fleet struct {
	gpus  []inventory.GPU
	slots map[string][]int // by PCI address
}

// fleetOf are the GPUs of a vendor, of all for "".
func fleetOf(m *Machine, vendor string) fleet {
	f := fleet{slots: map[string][]int{}}
	bound := slotBindings(m)
	for _, b := range bound {
		for _, of := range b.Members() {
			at := of.PCI
			for _, g := range m.Inventory.GPUs {
				if of.UUID != "" && strings.EqualFold(g.UUID, of.UUID) {
					at = g.PCI // it was moved
				}
			}
			if !slices.Contains(f.slots[at], b.Slot) {
				f.slots[at] = append(f.slots[at], b.Slot)
			}
		}
	}
	seen := map[string]bool{}
	for _, g := range m.Inventory.GPUs {
		if vendor != "" && g.Vendor != vendor || seen[g.PCI] || len(bound) > 0 && f.slots[g.PCI] == nil {
			continue
		}
		seen[g.PCI] = true
		f.gpus = append(f.gpus, g)
	}
	return f
}

// slotBindings are the slots' GPUs as they were recorded; none before the install. That
// the file is broken is the plan's to say.
func slotBindings(m *Machine) []plan.Binding {
	text, err := m.read(plan.BindingsPath)
	if err != nil {
		return nil
	}
	list, _ := plan.ParseBindings([]byte(text))
	return list
}

// gpuGroup are GPUs that have something in common.
type gpuGroup struct {
	value string
	gpus  []inventory.GPU
	slots []int
	all   bool // there are no others
}

// by groups GPUs by a value that each of them has, in their order. "" is unknown and
// left out.
func (f fleet) by(value func(inventory.GPU) string) []gpuGroup {
	var groups []gpuGroup
	for _, g := range f.gpus {
		v := value(g)
		if v == "" {
			continue
		}
		i := slices.IndexFunc(groups, func(g gpuGroup) bool { return g.value == v })
		if i < 0 {
			i, groups = len(groups), append(groups, gpuGroup{value: v})
		}
		groups[i].gpus = append(groups[i].gpus, g)
		groups[i].slots = append(groups[i].slots, f.slots[g.PCI]...)
	}
	for i := range groups {
		groups[i].all = len(groups[i].gpus) == len(f.gpus)
		slices.Sort(groups[i].slots)
	}
	return groups
}

// kinds are the groups of one model each.
func (f fleet) kinds() []fleet {
	var kinds []fleet
	for _, g := range f.by(func(g inventory.GPU) string { return cmp.Or(g.Model, "?") }) {
		kinds = append(kinds, fleet{g.gpus, f.slots})
	}
	return kinds
}

// where names the GPUs of a group.
func (g gpuGroup) where() string {
	switch n := len(g.gpus); {
	case n == 1:
		return "GPU " + g.gpus[0].PCI
	case g.all:
		return fmt.Sprintf("all %d GPUs", n)
	case n > 4:
		return fmt.Sprintf("%d GPUs, %s and others", n, g.gpus[0].PCI)
	}
	return "GPUs " + strings.Join(g.addresses(), ", ")
}

func (g gpuGroup) addresses() []string {
	list := make([]string, len(g.gpus))
	for i, gpu := range g.gpus {
		list[i] = gpu.PCI
	}
	return list
}

// each is a command for every GPU of the group; %s is its PCI address.
func (g gpuGroup) each(command string) string {
	if len(g.gpus) == 1 {
		return fmt.Sprintf(command, g.gpus[0].PCI)
	}
	return fmt.Sprintf("for g in %s; do %s; done", strings.Join(g.addresses(), " "), fmt.Sprintf(command, "$g"))
}

// whoHas says which GPUs have what: "1980 (all 7 GPUs), 1755 (GPU 0000:1a:00.0)".
func whoHas(groups []gpuGroup) string {
	list := make([]string, len(groups))
	for i, g := range groups {
		list[i] = fmt.Sprintf("%s (%s)", g.value, g.where())
	}
	return strings.Join(list, ", ")
}

// otherwise is what was found wrong, or else that all is well.
func otherwise(wrong []Finding, well Finding) Answer {
	if len(wrong) > 0 {
		return found(wrong...)
	}
	return found(well)
}

// rebooted is a finding that a reboot mends.
func rebooted(m *Machine, f Finding, before ...string) Finding {
	const reboot = "systemctl reboot"
	if _, err := os.Stat(m.path(plan.BindingsPath)); err != nil {
		return f.by("%s", strings.Join(append(before, reboot), " && "))
	}
	return f.by("%s", strings.Join(append(before, "kbnode drain --all --wait", reboot), " && ")).advise("after it type sudo kbnode resume --all")
}

// driverOf is the kernel driver that a PCI device is bound to; "" for none.
func driverOf(m *Machine, pci string) string {
	text, _ := m.read("/sys/bus/pci/devices/" + pci + "/uevent")
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DRIVER="); ok {
			return name
		}
	}
	return ""
}
