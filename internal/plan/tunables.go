package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/split"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// TunablesPath keeps the machine's settings from before kbnode changed them.
const TunablesPath = "/var/lib/kbnode/tunables.json"

// Tunable is a setting of the running machine that timings or other slots depend
// on. A reboot resets it.
type Tunable struct {
	// Name is a file in /proc or /sys, in which one * matches any number, or a
	// setting that NVIDIA's driver keeps for a GPU: nvml/UUID/persistence, which
	// is on or off, and nvml/UUID/clocks, as in the configuration.
	Name  string `json:"name"`
	Value string `json:"value"` // what to write
	Form  Form   `json:"form"`
	PCI   string `json:"pci,omitempty"` // of the GPU that it belongs to
	// Slots are the slots whose jobs must not run while it changes.
	Slots []int `json:"slots,omitempty"`
}

// Form is how a file shows its value.
type Form string

// The forms of a value.
const (
	Word   Form = "word"
	Choice Form = "choice"   // one word of several: "always [madvise] never"
	List   Form = "list"     // of CPUs
	Mask   Form = "mask"     // of CPUs, hexadecimal
	Least  Form = "at-least" // one integer or several; larger ones are fine
)

// GPUTunable returns the name of a setting that NVIDIA's driver keeps for a GPU.
func GPUTunable(uuid, setting string) string { return "nvml/" + uuid + "/" + setting }

// GPU returns the UUID and the setting of a GPUTunable; ok is false for a file.
func (t Tunable) GPU() (uuid, setting string, ok bool) {
	rest, ok := strings.CutPrefix(t.Name, "nvml/")
	if !ok {
		return "", "", false
	}
	uuid, setting, ok = strings.Cut(rest, "/")
	return uuid, setting, ok
}

// Settings of GPUs.
const (
	Persistence = "persistence"
	Clocks      = "clocks"
)

// quiet are the memory management settings that stop the kernel from moving
// pages while a job is timed.
var quiet = map[string]Tunable{
	"/proc/sys/kernel/numa_balancing":                       {Value: "0", Form: Word},
	"/sys/kernel/mm/ksm/run":                                {Value: "0", Form: Word},
	"/sys/kernel/mm/transparent_hugepage/enabled":           {Value: "madvise", Form: Choice},
	"/sys/kernel/mm/transparent_hugepage/khugepaged/defrag": {Value: "0", Form: Word},
}

// masks are the files that say on which CPUs the kernel does its own work.
var masks = []string{
	"/proc/irq/default_smp_affinity",
	"/sys/devices/virtual/workqueue/cpumask",
	"/sys/devices/virtual/workqueue/writeback/cpumask",
}

// addTunables plans the settings that leave each slot enough and keep timings
// steady. Only what the inventory saw can be set.
func (p *Plan) addTunables(inv *inventory.Inventory, cfg config.Config) {
	p.Tunables = []Tunable{}
	p.addLimits(inv)
	if cfg.Hygiene.Disabled {
		return
	}
	p.addMasks(inv, cfg)
	for _, f := range inv.Tuning.Files {
		if t, ok := quiet[f.Path]; ok && (t.Form != Choice || f.Value == "" || strings.Contains(f.Value, t.Value)) {
			t.Name = f.Path
			p.Tunables = append(p.Tunables, t)
		}
	}
	var all cpuset.Set
	for _, s := range p.Slots {
		cpus, _ := cpuset.Parse(s.CPUs)
		all = all.Union(cpus)
	}
	for _, g := range inv.Tuning.Governors {
		// An unread list is assumed to be unchanged: every driver has this governor.
		known := len(g.Known) == 0 || slices.Contains(g.Known, "performance")
		if cpus, err := cpuset.Parse(g.CPUs); err == nil && known && !cpus.Disjoint(all) {
			p.Tunables = append(p.Tunables, Tunable{Name: g.Path, Value: "performance", Form: Word})
		}
	}
	p.addGPUTunables(inv, cfg.Hygiene.Clocks)
}

// addMasks keeps interrupts and the kernel's work queues off the slots' CPUs.
func (p *Plan) addMasks(inv *inventory.Inventory, cfg config.Config) {
	reserved, _ := cpuset.Parse(p.Reserved.CPUs)
	skipped := false
	for _, f := range inv.Tuning.Files {
		switch {
		case !slices.Contains(masks, f.Path):
			continue
		case reserved.Len() == 0:
			skipped = true
			continue
		}
		p.Tunables = append(p.Tunables, Tunable{Name: f.Path, Value: maskText(reserved), Form: Mask})
		if f.Path == masks[0] {
			p.Tunables = append(p.Tunables, Tunable{Name: "/proc/irq/*/smp_affinity_list", Value: reserved.String(), Form: List})
		}
	}
	if !skipped {
		return
	}
	// A reserve is refused where no slot has a core to give, or where cpus_per_slot leaves none.
	some := slices.ContainsFunc(p.Slots, func(s Slot) bool {
		cpus, _ := cpuset.Parse(s.CPUs)
		return len(split.Cores(inv.CPU.List, cpus)) > 1
	})
	how := "set reserve.cpus to 1 or more"
	switch {
	case !some && cfg.GPUs.None:
		how = "write fewer slots (slots)"
	case !some:
		how = "choose fewer GPUs with --gpus (gpus)"
	case cfg.CPUsPerSlot > 0:
		how = "write a smaller cpus_per_slot"
	}
	p.Warnings = append(p.Warnings, "interrupts stay on the slots' CPUs: no CPUs are reserved for them; "+how)
}

// addGPUTunables plans the settings that a GPU has once for all slots that share it.
func (p *Plan) addGPUTunables(inv *inventory.Inventory, clocks string) {
	slotsOf := func(pci string) (slots []int) {
		for _, s := range p.Slots {
			if slices.ContainsFunc(s.GPUs, func(g SlotGPU) bool { return g.PCI == pci }) {
				slots = append(slots, s.Index)
			}
		}
		return slots
	}
	planned := map[string]bool{}
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			if g.Vendor != "nvidia" || g.UUID == "" || planned[g.PCI] {
				continue
			}
			planned[g.PCI] = true
			p.Tunables = append(p.Tunables, Tunable{Name: GPUTunable(g.UUID, Persistence), Value: "on", Form: Word, PCI: g.PCI})
			if clocks != config.ClocksDefault && g.Instance == "" { // the driver cannot lock clocks in MIG mode
				p.Tunables = append(p.Tunables, Tunable{Name: GPUTunable(g.UUID, Clocks), Value: clocks, Form: Word, PCI: g.PCI, Slots: slotsOf(g.PCI)})
			}
		}
	}
	if clocks == config.ClocksDefault {
		return
	}
	for _, g := range inv.GPUs {
		// Drivers of MI300 and later accept only the level auto.
		fixed := g.Arch != "gfx942" && g.Arch != "gfx950"
		if slots := slotsOf(g.PCI); (g.PerformanceLevel != "" || g.Unread && g.Arch != "") && fixed && !planned[g.PCI] && slots != nil {
			planned[g.PCI] = true
			p.Tunables = append(p.Tunables, Tunable{Name: "/sys/bus/pci/devices/" + g.PCI + "/power_dpm_force_performance_level", Value: "high", Form: Word, PCI: g.PCI, Slots: slots})
		}
	}
}

// maskText formats a set in the kernel's mask format.
func maskText(s cpuset.Set) string {
	ids := s.Ints()
	words := make([]uint32, ids[len(ids)-1]/32+1)
	for _, id := range ids {
		words[id/32] |= 1 << (id % 32)
	}
	var b strings.Builder
	for i, w := range slices.Backward(words) {
		if i == len(words)-1 {
			fmt.Fprintf(&b, "%x", w)
		} else {
			fmt.Fprintf(&b, ",%08x", w)
		}
	}
	return b.String()
}

// systemTasks is the allowance for processes and threads of the node itself.
const systemTasks = 8192

// MaxPIDs is the most that Linux takes as kernel.pid_max, and as the limit of a cgroup.
const MaxPIDs = 1 << 22

// addLimits raises kernel limits per user or machine on what is charged to the
// slot's memory anyway: root in all containers is one user, so one slot could leave
// none for the others and the node. Limits on what is not fully charged grow with
// the slots. This is isolation, so it applies even if hygiene is disabled.
func (p *Plan) addLimits(inv *inventory.Inventory) {
	tasks := int64(systemTasks)
	for _, s := range p.Slices {
		if s.Slot >= 0 {
			tasks += s.TasksMax
		}
	}
	if tasks > MaxPIDs {
		p.Warnings = append(p.Warnings, fmt.Sprintf("job.tasks_max: all slots together can use up the %d process IDs that Linux has, and leave none for the node; write at most %d",
			MaxPIDs, (MaxPIDs-systemTasks)/len(p.Slots)))
	}
	pids := min(2*tasks, MaxPIDs)
	const (
		intMax  = 1<<31 - 1
		longMax = 1<<63 - 1
		plenty  = 1 << 40
	)
	shares := int64(8+len(p.Slots)) * 4096
	memory := p.Reserved.MemoryBytes
	for _, s := range p.Slots {
		memory += s.MemoryBytes
	}
	least := map[string]int64{
		"/proc/sys/fs/aio-max-nr":                 plenty,
		"/proc/sys/fs/epoll/max_user_watches":     plenty,
		"/proc/sys/fs/file-max":                   longMax, // as systemd sets it
		"/proc/sys/fs/inotify/max_user_instances": intMax,
		"/proc/sys/fs/inotify/max_user_watches":   intMax,
		"/proc/sys/fs/pipe-user-pages-soft":       plenty,
		"/proc/sys/kernel/pid_max":                pids,
		"/proc/sys/kernel/pty/max":                shares,
		"/proc/sys/kernel/threads-max":            pids,
		// Only a process's ancestors, and root with CAP_SYS_PTRACE, reach its memory: at 0, a
		// child of a judge could open the judge's /proc/PID/mem. 2 and 3 close more.
		"/proc/sys/kernel/yama/ptrace_scope":          1,
		"/proc/sys/net/ipv4/neigh/default/gc_thresh2": shares / 2,
		"/proc/sys/net/ipv4/neigh/default/gc_thresh3": shares,
		// TCP connections that have ended for their processes: above, the kernel resets any that a process closes.
		"/proc/sys/net/ipv4/tcp_max_orphans": intMax,
		// What all sockets of the machine may hold, in pages. One slot's could hold it all.
		"/proc/sys/net/ipv4/tcp_mem":                  memory >> 12,
		"/proc/sys/net/ipv4/udp_mem":                  memory >> 12,
		"/proc/sys/net/ipv6/neigh/default/gc_thresh2": shares / 2,
		"/proc/sys/net/ipv6/neigh/default/gc_thresh3": shares,
	}
	for _, f := range inv.Tuning.Files {
		n, ok := least[f.Path]
		if !ok || f.Path == "/proc/sys/fs/pipe-user-pages-soft" && f.Value == "0" { // no limit
			continue
		}
		value := strconv.FormatInt(n, 10)
		if strings.HasSuffix(f.Path, "p_mem") { // the least, a pressure, the most
			value += " " + value + " " + value
		}
		p.Tunables = append(p.Tunables, Tunable{Name: f.Path, Value: value, Form: Least})
	}
}
