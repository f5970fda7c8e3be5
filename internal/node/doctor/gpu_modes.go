package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// ofNVIDIA runs a check on the NVIDIA GPUs that NVML answers for.
func ofNVIDIA(ask func(*Machine, fleet) Answer) func(context.Context, *Machine) Answer {
	return func(_ context.Context, m *Machine) Answer {
		if m.Inventory.NVIDIA == nil {
			return none(noNVIDIA)
		}
		f := fleetOf(m, "nvidia")
		f.gpus = slices.DeleteFunc(f.gpus, func(g inventory.GPU) bool { return g.NVML == nil || !g.Healthy })
		if len(f.gpus) == 0 {
			return none("NVML reports nothing about them")
		}
		return ask(m, f)
	}
}

func migModes(m *Machine, f fleet) Answer {
	var wrong []Finding
	var layouts []string
	for _, g := range f.group(func(g inventory.GPU) string {
		pending := g.MIGMode
		if g.NVML.MIGMode != nil {
			pending = g.NVML.MIGMode.Pending
		}
		switch {
		case g.MIGMode == "on" && pending == "off":
			return "leaving"
		case g.MIGMode == "on" && len(g.MIG) > 0:
			return "instances " + migLayout(g.MIG)
		case g.MIGMode != "on" && pending == "on":
			return "entering"
		}
		return g.MIGMode
	}) {
		const off = "nvidia-smi -i %s -mig 0"
		at := g.where()
		if layout, divided := strings.CutPrefix(g.value, "instances "); divided {
			layouts = append(layouts, fmt.Sprintf("%s (%s)", layout, at))
		}
		switch g.value {
		case "on":
			wrong = append(wrong, fail("MIG mode is on, without instances (%s)", at).By("%s", g.each(off)).Of(g.slots...).
				Advise("or make instances with sudo nvidia-smi mig -cgi, and run sudo kbnode install"))
		case "leaving":
			wrong = append(wrong, rebooted(m, fail("MIG mode is on until the next reset (%s)", at).Of(g.slots...)))
		case "entering":
			wrong = append(wrong, warn("MIG mode will be on after the next reset (%s)", at).By("%s", g.each(off)).Of(g.slots...))
		}
	}
	if len(f.group(func(g inventory.GPU) string { return g.MIGMode })) == 0 {
		return none("NVML does not report it")
	}
	return foundOr(wrong, ok("%s", cmp.Or(strings.Join(layouts, "; "), "off")))
}

// migLayout formats how a GPU is divided: "4g.90gb, 3g.90gb", "7 of 1g.23gb".
func migLayout(instances []inventory.MIG) string {
	var parts []string
	for i := 0; i < len(instances); {
		n := 1
		for i+n < len(instances) && instances[i+n].Profile == instances[i].Profile {
			n++
		}
		part := instances[i].Profile
		if n > 1 {
			part = fmt.Sprintf("%d of %s", n, part)
		}
		parts = append(parts, part)
		i += n
	}
	return strings.Join(parts, ", ")
}

func computeModes(_ *Machine, f fleet) Answer {
	var wrong []Finding
	for _, g := range f.group(func(g inventory.GPU) string { return g.ComputeMode }) {
		switch g.value {
		case "default":
			continue
		case "prohibited":
			wrong = append(wrong, fail("the compute mode is prohibited: no CUDA program starts (%s)", g.where()))
		default:
			wrong = append(wrong, fail("the compute mode is %s: a job's second process gets no GPU (%s)", g.value, g.where()))
		}
		last := &wrong[len(wrong)-1]
		*last = last.Safely("%s", g.each("nvidia-smi -i %s -c 0")).Of(g.slots...)
	}
	if len(f.group(func(g inventory.GPU) string { return g.ComputeMode })) == 0 {
		return none("NVML does not report it")
	}
	return foundOr(wrong, ok("default"))
}

func eccModes(m *Machine, f fleet) Answer {
	var wrong []Finding
	known := false
	for _, kind := range f.kinds() {
		for _, g := range kind.group(func(g inventory.GPU) string {
			if e := g.NVML.ECCMode; e != nil && e.Pending != e.Current {
				return "now " + e.Current + ", and " + e.Pending + " after the next reset"
			}
			return g.ECCMode
		}) {
			known = true
			switch g.value {
			case "on":
			case "off":
				why := "so memory errors go unnoticed"
				if !g.all {
					why = "but on for others: its memory differs in size and speed"
				}
				wrong = append(wrong, rebooted(m, warn("ECC is off (%s), %s", g.where(), why), g.each("nvidia-smi -i %s -e 1")).Of(g.slots...))
			default:
				wrong = append(wrong, rebooted(m, warn("ECC is %s (%s)", g.value, g.where())).Of(g.slots...))
			}
		}
	}
	if !known {
		return none("these GPUs have no ECC")
	}
	return foundOr(wrong, ok("on"))
}

func gpuClocks(m *Machine, f fleet) Answer {
	wrong := f.differing("maximum clocks", func(g inventory.GPU) string { return inUnits(g.MaxSMClockMHz, "MHz") },
		"compare their firmware (nvidia-smi -q, VBIOS Version) and their boards")
	fastest := int64(0)
	for _, g := range f.gpus {
		fastest = max(fastest, g.MaxSMClockMHz)
	}
	if h := m.Config.Hygiene; h.Disabled || h.Clocks == config.ClocksDefault {
		for _, g := range f.group(func(g inventory.GPU) string {
			const idle, setting = 0x1, 0x2 // nvmlClocksEventReason…
			if r := g.NVML.ClockReasons; r == nil || *r&setting == 0 || *r&idle != 0 {
				return ""
			}
			return "held"
		}) {
			wrong = append(wrong, warn("someone set clocks that limit it (%s)", g.where()).
				Safely("%s", g.each("nvidia-smi -i %[1]s -rgc; nvidia-smi -i %[1]s -rac")).Of(g.slots...))
		}
	}
	if fastest == 0 && len(wrong) == 0 {
		return none("NVML does not report them")
	}
	return foundOr(wrong, ok("up to %d MHz", fastest))
}

func powerLimits(_ *Machine, f fleet) Answer {
	limit := func(g inventory.GPU) int64 { return g.PowerLimitMilliwatts / 1000 }
	wrong := f.power(limit, func(g inventory.GPU) int64 {
		if p := g.NVML.Power; p != nil && p.Default != nil {
			return int64(*p.Default / 1000)
		}
		return 0
	}, "nvidia-smi -i %s -pl WATTS", "sudo nvidia-smi -i GPU -pl WATTS")
	for _, g := range f.group(func(g inventory.GPU) string {
		p := g.NVML.Power
		if p == nil || p.Limit == nil || p.Enforced == nil || *p.Enforced+1000 >= *p.Limit {
			return ""
		}
		return fmt.Sprintf("%d W, below its limit of %d W", *p.Enforced/1000, *p.Limit/1000)
	}) {
		wrong = append(wrong, warn("something limits it to %s (%s)", g.value, g.where()).Of(g.slots...).
			Advise("check the chassis power cap (BMC) and the power supplies"))
	}
	all := f.group(func(g inventory.GPU) string { return inUnits(limit(g), "W") })
	if len(all) == 0 {
		return none("NVML does not report it")
	}
	return foundOr(wrong, ok("%s", all[0].value))
}

// power finds GPUs with less than their normal power limit in watts, or else with different ones. In the
// command that sets a limit as root, %s is the PCI address; typed is it as a user types it.
func (f fleet) power(limit, normal func(inventory.GPU) int64, command, typed string) (wrong []Finding) {
	for _, g := range f.group(func(g inventory.GPU) string {
		if limit(g) == 0 || limit(g) >= normal(g) {
			return ""
		}
		return fmt.Sprintf("%d W instead of the default %d W", limit(g), normal(g))
	}) {
		wrong = append(wrong, warn("the power limit is %s (%s)", g.value, g.where()).Of(g.slots...).
			Safely("%s", g.each(strings.ReplaceAll(command, "WATTS", strconv.FormatInt(normal(g.gpus[0]), 10)))))
	}
	if len(wrong) > 0 {
		return wrong
	}
	return f.differing("power limits", func(g inventory.GPU) string { return inUnits(limit(g), "W") }, "set the same limit: "+typed)
}

// inUnits formats a number with its unit, or returns "" if it is unknown.
func inUnits(n int64, unit string) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, unit)
}
