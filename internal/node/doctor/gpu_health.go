package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// gpuHealth judges the GPUs as the daemon does. Where one runs, the check health reports its verdicts.
func gpuHealth(ctx context.Context, m *Machine) Answer {
	f := fleetOf(m, "")
	switch {
	case len(f.gpus) == 0:
		return none("no GPU")
	case m.Value(host.CgroupRoot+"/system.slice/"+plan.NodeService+"/cgroup.procs") != "": // even if systemd does not answer
		return none("kbnode.service watches this; see health")
	}
	verdicts, unread := verdictsNow(ctx, m, f)
	var wrong []Finding
	if unread != nil {
		wrong = append(wrong, warn("%s", unread).Advise("see whether sudo dmesg names a GPU"))
	}
	for _, v := range verdicts {
		ofGPU := strings.HasPrefix(v.Check, "gpu.") || v.Check == "node.nvswitch"
		if v.Level >= health.Warn && ofGPU && !isOwn(m, v) {
			wrong = append(wrong, verdictFinding(v))
		}
	}
	if len(wrong) == 0 && m.Recorded != "" {
		return none("no fault is recorded, but neither is the kernel's log")
	}
	return foundOr(wrong, ok("%d GPUs", len(f.gpus)))
}

// verdictFinding converts a verdict to a finding.
func verdictFinding(v health.Verdict) Finding {
	f := Finding{Status: Warn, Slots: v.Slots, Detail: fmt.Sprintf("%s: %s", v.Check, v.Reason), Advice: v.Fix}
	if v.Effect > health.None || v.Level == health.Fatal {
		f.Status = Fail
	}
	return f
}

// verdictsNow judges the GPUs like a daemon that has just started and sees the same again a
// minute later. An error means that the kernel's log cannot be read; the verdicts are still valid.
func verdictsNow(ctx context.Context, m *Machine, f fleet) ([]health.Verdict, error) {
	var now health.Moment // of a recorded machine the clocks are unknown
	var err error
	if m.Recorded == "" {
		if now, err = signals.Now(); err != nil {
			return nil, err
		}
	}
	now.Now = m.Now
	in := health.Signals{Moment: now, GPUs: &health.GPUs{Started: now.Up, List: f.gpus, NVIDIA: m.Inventory.NVIDIA, Bus: signals.ReadBus(m.Root, f.gpus), Unread: m.Inventory.Unread}}
	for _, b := range slotBindings(m) {
		for _, g := range b.Members() {
			in.Slots = append(in.Slots, health.Slot{Index: b.Slot, UUID: g.UUID, PCI: g.PCI})
		}
	}
	if m.Recorded == "" {
		log := signals.Kmsg{Path: m.Path("/dev/kmsg"), Once: true}
		err = log.Run(ctx, func(fact health.Fact) {
			// Errors that jobs cause are no fault of the GPU, and the job can no longer be
			// determined.
			caused := fact.Kind == health.KindRing || fact.Kind == health.KindFault ||
				fact.Kind == health.KindXid && health.LookupXid(fact.Xid).Class == health.XidApplication
			if !caused && len(in.Kernel) < maxFacts {
				in.Kernel = append(in.Kernel, fact)
			}
		})
	}
	state, _, _ := health.Judge(health.State{}, in)
	in.Up, in.Now, in.Kernel = in.Up+time.Minute, in.Now.Add(time.Minute), nil
	_, verdicts, _ := health.Judge(state, in)
	return verdicts, err
}

// maxFacts limits how many facts from the kernel's log are judged.
const maxFacts = 10000

// ownVerdicts are the daemon's verdicts whose causes group gpu checks itself.
var ownVerdicts = []string{"gpu.missing", "gpu.error", "gpu.nvml", "node.driver", "node.nvml", "node.unit"}

// isOwn reports whether a check of group gpu says the cause of a verdict. That a GPU is lost or needs a reset,
// gpu-answers says while it does not answer; of one that answers again, only the verdict is left.
func isOwn(m *Machine, v health.Verdict) bool {
	if v.Check != "gpu.lost" && v.Check != "gpu.recovery" {
		return slices.Contains(ownVerdicts, v.Check)
	}
	f := fleetOf(m, "")
	bus := signals.ReadBus(m.Root, f.gpus)
	return slices.ContainsFunc(f.gpus, func(g inventory.GPU) bool {
		// A lost GPU may not tell its UUID.
		same := v.GPU == g.PCI || v.GPU == g.UUID || g.UUID == "" && slices.ContainsFunc(f.slots[g.PCI], func(k int) bool { return slices.Contains(v.Slots, k) })
		return same && (!g.Healthy || bus[g.PCI].Dead)
	})
}

// fleet holds the GPUs of the slots, or all GPUs before there are slots. A GPU with several
// partitions is in it once.
type fleet struct {
	gpus  []inventory.GPU
	slots map[string][]int // by PCI address
}

// fleetOf returns the GPUs of a vendor, or of all vendors for "".
func fleetOf(m *Machine, vendor string) fleet {
	f := fleet{slots: map[string][]int{}}
	bindings := slotBindings(m)
	for _, b := range bindings {
		for _, member := range b.Members() {
			at := member.PCI
			for _, g := range m.Inventory.GPUs {
				if member.UUID != "" && strings.EqualFold(g.UUID, member.UUID) {
					at = g.PCI // it was moved
				}
			}
			if !slices.Contains(f.slots[at], b.Slot) {
				f.slots[at] = append(f.slots[at], b.Slot)
			}
		}
	}
	listed := map[string]bool{}
	for _, g := range m.Inventory.GPUs {
		if vendor != "" && g.Vendor != vendor || listed[g.PCI] || len(bindings) > 0 && f.slots[g.PCI] == nil {
			continue
		}
		listed[g.PCI] = true
		f.gpus = append(f.gpus, g)
	}
	return f
}

// slotBindings returns the recorded GPUs of the slots, or none before the install. The plan
// reports a broken file.
func slotBindings(m *Machine) []plan.Binding {
	text, err := m.Read(plan.BindingsPath)
	if err != nil {
		return nil
	}
	bindings, err := plan.ParseBindings([]byte(text))
	if err != nil {
		return nil
	}
	return bindings.Slots
}

// gpuGroup is a group of GPUs that share a value.
type gpuGroup struct {
	value string
	gpus  []inventory.GPU
	slots []int
	all   bool // there are no others
}

// group groups the GPUs by a value, in their order. It leaves out GPUs with the unknown value
// "".
func (f fleet) group(value func(inventory.GPU) string) []gpuGroup {
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

// kinds groups the GPUs by model.
func (f fleet) kinds() []fleet {
	var kinds []fleet
	for _, g := range f.group(func(g inventory.GPU) string { return cmp.Or(g.Model, "?") }) {
		kinds = append(kinds, fleet{g.gpus, f.slots})
	}
	return kinds
}

// differing finds GPUs of one model that differ in a value.
func (f fleet) differing(what string, value func(inventory.GPU) string, todo string) (wrong []Finding) {
	for _, kind := range f.kinds() {
		if all := kind.group(value); len(all) > 1 {
			list := make([]string, len(all))
			for i, g := range all {
				list[i] = fmt.Sprintf("%s (%s)", g.value, g.where())
			}
			wrong = append(wrong, warn("equal GPUs have different %s: %s", what, strings.Join(list, ", ")).
				Advise("%s; scores of these slots cannot be compared", todo))
		}
	}
	return wrong
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

// each returns a command for every GPU of the group. In it, %s is the PCI address.
func (g gpuGroup) each(command string) string {
	if len(g.gpus) == 1 {
		return fmt.Sprintf(command, g.gpus[0].PCI)
	}
	return fmt.Sprintf("for g in %s; do %s; done", strings.Join(g.addresses(), " "), fmt.Sprintf(command, "$g"))
}

// rebooted adds a reboot as the fix of a finding. That of a node waits for jobs, and keeps the drains that are not its own.
func rebooted(m *Machine, f Finding, before ...string) Finding {
	reboot := "systemctl reboot"
	if m.Exists(plan.BindingsPath) {
		reboot = "kbnode drain --all --reboot"
	}
	return f.By("%s", strings.Join(append(before, reboot), " && "))
}
