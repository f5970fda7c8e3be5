package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

const (
	throttleAfter = time.Minute     // two readings; a single one may be the start of a kernel
	throttleQuiet = 5 * time.Minute // time to cool down, and to avoid flapping
	fabricStart   = 5 * time.Minute // time that the fabric manager may take after a boot
	replayRate    = 31              // PCIe replays per minute: DCGM's limit at generation 5, 16 lanes

	// repairTime is how long a GPU that was taken out may be away before its faults are forgotten.
	repairTime = 90 * 24 * time.Hour
)

// gpus judges one reading of all GPUs.
func (j *judge) gpus() {
	present := map[string]bool{}
	for i := range j.in.GPUs.List {
		g := &j.in.GPUs.List[i]
		id := cmp.Or(g.UUID, j.byPCI[g.PCI], g.PCI)
		if present[id] {
			continue // a partition; a GPU's partitions share their state
		}
		present[id] = true
		j.judgeGPU(id, g)
	}
	for _, s := range j.in.Slots {
		id := j.idOf(s)
		if id == "" || !present[id] && j.in.GPUs.unread(s.PCI) {
			continue
		}
		j.update(gpuKey(checkMissing, id), !present[id], Mark{
			Level: Fatal, Effect: Park,
			Reason: fmt.Sprintf("GPU %s at %s is missing", id, s.PCI),
			Fix:    "look for it with lspci and sudo dmesg; otherwise " + fixReboot,
		})
		if !present[id] {
			j.gpu(id, s.PCI).Away = true
		}
	}
	missing := func(id string) bool {
		return id != "" && !present[id] && len(j.slotsOf(id)) == 0 && !j.in.GPUs.unread(j.addressOf(id))
	}
	j.s.Marks = slices.DeleteFunc(j.s.Marks, func(m Mark) bool { return !m.Latched && missing(m.GPU) })
	for i := range j.s.GPUs {
		switch g := &j.s.GPUs[i]; {
		case present[g.ID] || len(j.slotsOf(g.ID)) > 0:
			g.RemovedAt = 0
		case g.RemovedAt == 0 && missing(g.ID):
			g.RemovedAt = j.s.Age
		}
	}
	j.s.GPUs = slices.DeleteFunc(j.s.GPUs, func(g gpu) bool {
		forgotten := len(g.Faults) == 0 && g.Out == "" && g.Fault == "" && g.Proof == nil || j.s.Age-g.RemovedAt > repairTime
		return missing(g.ID) && forgotten && !slices.ContainsFunc(j.s.Marks, func(m Mark) bool { return m.GPU == g.ID })
	})
	j.driver()
}

// judgeGPU judges one GPU. Signals that could not be read keep their last verdict.
func (j *judge) judgeGPU(id string, g *inventory.GPU) {
	st := j.gpu(id, g.PCI)
	st.PCI, st.Vendor = g.PCI, g.Vendor
	if nv := j.in.GPUs.NVIDIA; g.Vendor == "nvidia" && nv != nil && nv.NVMLError == "" {
		j.silent(id, g)
	}
	bus, n := j.in.GPUs.Bus[g.PCI], g.NVML
	code := 0
	if n != nil {
		code = n.Code
	}
	// Where NVML does not answer, the files in sysfs cannot show that the GPU is healthy.
	readable := n != nil || g.Vendor == "amd" && !bus.Unread || bus.Dead || !g.Healthy
	lost, reset := bus.Dead || code == nvml.CodeLost, code == nvml.CodeReset
	if readable {
		why := strings.Replace(g.Error, "GPU is lost", "NVML says so", 1)
		if bus.Dead {
			why = "its PCI configuration reads as all ones"
		}
		j.update(gpuKey(checkLost, id), lost, Mark{
			Level: Fatal, Effect: Park,
			Reason: "the GPU at " + g.PCI + " is lost: " + why,
			Fix:    fixReboot,
		})
		j.update(gpuKey(checkError, id), !g.Healthy && !lost && !reset, Mark{
			Level: Fatal, Effect: Park,
			Reason: "the GPU at " + g.PCI + " cannot be used: " + g.Error,
			Fix:    "sudo dmesg; kbnode inventory",
		})
	}
	if reset || g.Healthy && n != nil && n.RecoveryAction == nil {
		j.update(gpuKey(checkRecovery, id), reset, Mark{
			Level: Fatal, Effect: Drain,
			Reason: "the driver requests a reset of the GPU at " + g.PCI + " (NVML)", Fix: fixReset(g.PCI),
		})
	}
	st.Away = st.Away || code == nvml.CodeLost || reset
	if !readable || lost || !g.Healthy {
		return
	}
	if st.Away { // it does not come back without a reset
		st.Away, st.Reset = false, j.in.GPUs.Started
	}
	if n != nil {
		if n.RecoveryAction != nil {
			j.recovery(id, int(*n.RecoveryAction), j.in.GPUs.Started, "NVML")
		}
		j.memory(id, n)
		j.speed(id, n)
		j.links(id, g)
	}
	if g.Vendor == "amd" {
		j.ras(id, bus)
		if bus.Link != nil {
			j.link(id, bus.Link)
		}
	}
	// The GPU answers, so whatever was wrong before its reset is over.
	if st.Reset > 0 && j.in.GPUs.Started >= st.Reset {
		j.clear("the GPU was reset", func(m Mark) bool { return m.GPU == id && m.Latched && m.Last < st.Reset })
		st.Released = j.in.GPUs.Started
	}
}

// silent judges a GPU that the driver does not answer for, while it answers for others. If it answers for none, that is
// driver's.
func (j *judge) silent(id string, g *inventory.GPU) {
	k := gpuKey(checkGPUNVML, id)
	m := Mark{
		Level: Warn, After: nvmlAfter,
		Reason: "the driver does not answer for the GPU at " + g.PCI, Fix: "sudo dmesg, for what the driver says about it",
	}
	if old := j.find(k); old != nil && (old.Effect == Drain || j.in.Up-old.First >= silentAfter) {
		m.Level, m.Effect = Fatal, Drain
		m.Reason = "the driver has not answered for the GPU at " + g.PCI + " for minutes, so jobs would run on a GPU that no one checks"
		m.Fix = fixReset(g.PCI) + "; if that hangs, " + fixReboot
	}
	j.update(k, g.Unread && g.NVML == nil, m)
}

// memory judges ECC errors and row remapping.
func (j *judge) memory(id string, n *nvml.GPU) {
	pci := j.addressOf(id)
	const replace = "replace the GPU"
	type finding struct {
		check, detail string
		bad           bool
		level         Level
		effect        Effect
		reason, fix   string
	}
	var all []finding
	if e := n.ECC; e != nil {
		if c := e.VolatileUncorrected; c != nil {
			all = append(all, finding{checkECC, "volatile", *c > 0, Fatal, Drain, fmt.Sprintf("the memory of the GPU at %s had %d uncorrectable errors since its driver started", pci, *c), fixReset(pci) + "; if it comes back, " + replace})
		}
		if t := e.SRAMThreshold; t != nil {
			all = append(all, finding{checkECC, "sram", *t, Fatal, Drain, "the GPU at " + pci + " had more cache errors than NVIDIA allows", replace})
		}
	}
	if r := n.RemappedRows; r != nil {
		all = append(all,
			finding{checkRemap, "failed", r.Failed, Fatal, Drain, "a memory row of the GPU at " + pci + " could not be remapped", replace},
			finding{checkRemap, "pending", r.Pending, Degraded, Drain, "a memory row of the GPU at " + pci + " waits to be remapped", fixReset(pci)},
			finding{checkRemap, "many", r.Uncorrectable >= 512, Warn, None, fmt.Sprintf("%d memory rows of the GPU at %s were remapped because of uncorrectable errors", r.Uncorrectable, pci), replace})
		if b := r.Banks; b != nil {
			all = append(all, finding{checkRemap, "spare", b.None > 0, Warn, None, fmt.Sprintf("%d memory banks of the GPU at %s have no spare rows left", b.None, pci), replace})
		}
	}
	for _, f := range all {
		j.update(gpuKey(f.check, id, f.detail), f.bad, Mark{Level: f.level, Effect: f.effect, Reason: f.reason, Fix: f.fix})
	}
	st := j.gpu(id, pci)
	if n.Persistence == "on" && n.EnergyMillijoules != nil {
		// The counter starts when the driver starts the GPU. With persistence on, that is
		// at a reset or when the driver is loaded.
		if st.Energy != nil && *n.EnergyMillijoules < *st.Energy {
			st.Reset = j.in.GPUs.Started
		}
		e := *n.EnergyMillijoules
		st.Energy = &e
	} else {
		st.Energy = nil
	}
}

// speed judges temperature and the reasons for low clocks.
func (j *judge) speed(id string, n *nvml.GPU) {
	pci := j.addressOf(id)
	if r := n.ClockReasons; r != nil {
		var why []string
		if *r&0x8 != 0 {
			why = append(why, "hardware slowdown")
		}
		if *r&0x80 != 0 {
			why = append(why, "power brake")
		}
		j.update(gpuKey(checkThrottle, id), len(why) > 0, Mark{
			Level: Degraded, After: throttleAfter, Quiet: throttleQuiet,
			Reason: "the GPU at " + pci + " is slowed down: " + strings.Join(why, ", "),
			Fix:    "check the power supply and the power limit of the rack; do not trust timings from this time",
		})
	}
	hot := n.ClockReasons != nil && *n.ClockReasons&0x60 != 0
	reason := "the GPU at " + pci + " is slowed down by heat"
	if t := n.Temperature; t != nil {
		if t.Margin != nil && *t.Margin > 0 && *t.Margin <= 5 { // 0 or less: not measured
			hot, reason = true, fmt.Sprintf("%s, or soon will be: %d °C left", reason, *t.Margin)
		}
		if t.GPU != nil {
			reason += fmt.Sprintf(" (%d °C)", *t.GPU)
		}
	}
	if n.ClockReasons != nil || n.Temperature != nil {
		j.update(gpuKey(checkThermal, id), hot, Mark{
			Level: Degraded, After: throttleAfter, Quiet: throttleQuiet, Reason: reason,
			Fix: "check fans, filters and the room; do not trust timings from this time",
		})
	}
}

// links judges the fabric, NVLink and PCIe.
func (j *judge) links(id string, g *inventory.GPU) {
	n, pci := g.NVML, j.addressOf(id)
	if f := n.Fabric; f != nil {
		k := gpuKey(checkFabric, id)
		m := Mark{Level: Degraded, Effect: Park, Fix: "systemctl status nvidia-fabricmanager"}
		if old := j.find(k); old != nil && j.in.Up-old.First >= fabricStart {
			m.Level = Fatal // it has had enough time
		}
		bad := f.State == "in progress" || f.State == "not started"
		m.Reason = "the GPU at " + pci + " is not part of the NVLink fabric: " + f.State
		if f.State == "completed" && f.Status != 0 {
			bad, m.Level, m.Reason = true, Fatal, fmt.Sprintf("the GPU at %s could not join the NVLink fabric (NVML code %d)", pci, f.Status)
		}
		j.update(k, bad, m)
	}
	if up := n.NVLinksUp; up != nil && g.MIGMode != "on" {
		st := j.gpu(id, pci)
		st.Links = max(st.Links, *up)
		want := st.Links
		for _, other := range j.in.GPUs.List { // without bridges, no link is up
			if other.Model == g.Model && other.NVML != nil && other.NVML.NVLinksUp != nil && want > 0 {
				want = max(want, *other.NVML.NVLinksUp)
			}
		}
		j.update(gpuKey(checkNVLink, id), *up < want, Mark{
			Level: Fatal, Effect: Drain, After: throttleAfter,
			Reason: fmt.Sprintf("only %d of %d NVLinks of the GPU at %s are up", *up, want, pci),
			Fix:    fixReset(pci) + "; if it comes back, have the board checked",
		})
	}
	if p := n.PCIe; p != nil {
		j.pcie(id, n, p)
	}
}

func (j *judge) pcie(id string, n *nvml.GPU, p *nvml.PCIe) {
	pci := j.addressOf(id)
	// An idle link is slow to save power.
	c := n.Clocks
	if busy := c != nil && c.SM != nil && c.MaxSM != nil && *c.SM >= *c.MaxSM/2 && len(n.Processes) > 0; busy && p.Gen != nil && p.MaxGen != nil {
		j.seeLink(id, "generation", *p.Gen < *p.MaxGen, fmt.Sprintf("the GPU at %s uses PCIe generation %d of %d under load", pci, *p.Gen, *p.MaxGen))
	}
	j.link(id, p)
}

// link judges what the PCIe links of all vendors have in common.
func (j *judge) link(id string, l *nvml.PCIe) {
	pci := j.addressOf(id)
	if l.Width != nil && l.MaxWidth != nil && *l.Width > 0 {
		j.seeLink(id, "width", *l.Width < *l.MaxWidth, fmt.Sprintf("the GPU at %s has %d of %d PCIe lanes", pci, *l.Width, *l.MaxWidth))
	}
	if l.Replays == nil {
		return
	}
	st := j.gpu(id, pci)
	if since := j.in.GPUs.Started - st.Read; st.Replays != nil && since > 0 {
		rate := float64(*l.Replays-*st.Replays) / since.Minutes()
		j.seeLink(id, "replays", rate > replayRate, fmt.Sprintf("the PCIe link of the GPU at %s resends %.0f packets per minute", pci, rate))
	}
	r := *l.Replays
	st.Replays, st.Read = &r, j.in.GPUs.Started
}

func (j *judge) seeLink(id, detail string, bad bool, reason string) {
	j.update(gpuKey(checkPCIe, id, detail), bad, Mark{
		Level: Warn, After: throttleAfter, Quiet: throttleQuiet, Reason: reason,
		Fix: "reseat the GPU or its riser; compare with lspci -vv",
	})
}

// ras judges the error counters of an AMD GPU.
func (j *judge) ras(id string, bus Bus) {
	st := j.gpu(id, "")
	if bus.RAS != nil {
		var errors uint64
		var blocks []string
		for name, n := range bus.RAS {
			errors += n
			if n > 0 {
				blocks = append(blocks, fmt.Sprintf("%s %d", name, n))
			}
		}
		slices.Sort(blocks)
		if st.Reset > st.Released || errors < st.RAS {
			st.RAS = errors // reset, or its driver was loaded, since the last reading
		}
		j.update(gpuKey(checkRAS, id), errors > st.RAS, Mark{
			Level: Fatal, Effect: Drain,
			Reason: "the GPU at " + j.addressOf(id) + " has uncorrectable errors: " + strings.Join(blocks, ", "),
			Fix:    fixAMDReset(j.addressOf(id)),
		})
	}
}
