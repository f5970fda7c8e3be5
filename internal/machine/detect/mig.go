package detect

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// migMinors lists the minor numbers of the driver's capabilities, in lines such as
// "gpu0/gi1/ci0/access 13". The number after gpu is the GPU's device minor.
const migMinors = "proc/driver/nvidia-caps/mig-minors"

var capability = lazy.Regexp(`^(gpu\d{1,4}/gi\d{1,4}(?:/ci\d{1,4})?)/access (\d{1,7})$`)

// migInstances returns the instances that NVML identifies. Their capabilities are not known
// yet.
func migInstances(n *nvml.GPU) []inventory.MIG {
	var list []inventory.MIG
	for _, m := range n.MIG {
		if !inventory.ValidUUID(m.UUID) {
			continue
		}
		mig := inventory.MIG{
			UUID: m.UUID, Name: printable(m.Name), Profile: migProfile(n, m), GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance,
			MemoryBytes: m.MemoryBytes, Slices: m.Slices, Start: -1, GPUCap: -1, ComputeCap: -1,
		}
		if m.Start != nil && m.Size != nil {
			mig.Start, mig.MemorySlices = *m.Start, *m.Size
		}
		list = append(list, mig)
	}
	return list
}

// migName matches NVML's name of an instance: the model, then the profile. With +me or +gfx
// the instance has engines that the others lack, with -me it lacks them. What else a profile
// may end in distinguishes it from others, too.
var migName = lazy.Regexp(` MIG ((?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb[\w.+-]{0,40})$`)

// migProfile returns an instance's profile: the one in its name, or else one derived from
// its size, in which memory is counted in eighths of the GPU's.
func migProfile(n *nvml.GPU, m nvml.MIG) string {
	if found := migName().FindStringSubmatch(m.Name); found != nil {
		return found[1]
	}
	if n.Memory == nil || n.Memory.TotalBytes == 0 || m.MemoryBytes <= 0 || m.Slices <= 0 {
		return ""
	}
	const gib = 1 << 30
	eighths := max(1, math.Round(8*float64(m.MemoryBytes)/float64(n.Memory.TotalBytes)))
	profile := fmt.Sprintf("%dg.%.0fgb", m.Slices, math.Round(eighths/8*math.Ceil(float64(n.Memory.TotalBytes)/gib)))
	if m.ComputeSlices > 0 && m.ComputeSlices != m.Slices {
		profile = fmt.Sprintf("%dc.%s", m.ComputeSlices, profile)
	}
	return profile
}

// migCaps fills in the capabilities of the GPUs' instances, and reports those without: only
// root could use them.
func migCaps(t tree, gpus []inventory.GPU) []inventory.Problem {
	if !slices.ContainsFunc(gpus, func(g inventory.GPU) bool { return len(g.MIG) > 0 || g.NVML != nil && len(g.NVML.MIG) > 0 }) {
		return nil
	}
	caps, lines := map[string]int{}, map[string]string{}
	for line := range strings.Lines(t.text(migMinors)) {
		line = strings.TrimSpace(line)
		found := capability().FindStringSubmatch(line)
		if found == nil {
			continue
		}
		minor, err := strconv.Atoi(found[2])
		if _, twice := caps[found[1]]; twice || err != nil || minor <= 0 || minor >= 1<<20 {
			minor = -1
		}
		caps[found[1]], lines[found[1]] = minor, line
	}
	var used []string
	minorOf := func(path string) int {
		minor, ok := caps[path]
		if !ok {
			return -1
		}
		if !slices.Contains(used, lines[path]) {
			used = append(used, lines[path])
		}
		return minor
	}
	var problems []inventory.Problem
	for _, g := range gpus {
		var without []string
		for i := range g.MIG {
			m := &g.MIG[i]
			if g.Minor >= 0 {
				path := fmt.Sprintf("gpu%d/gi%d", g.Minor, m.GPUInstance)
				m.GPUCap, m.ComputeCap = minorOf(path), minorOf(fmt.Sprintf("%s/ci%d", path, m.ComputeInstance))
			}
			if m.GPUCap < 0 || m.ComputeCap < 0 {
				without = append(without, m.UUID)
			}
		}
		if without != nil {
			problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(g.PCI), Detail: fmt.Sprintf("/%s has no capabilities for %d of its %d MIG instances (%s)",
				migMinors, len(without), len(g.MIG), strings.Join(without, ", "))})
		}
		if g.NVML == nil {
			continue
		}
		for _, m := range g.NVML.MIG {
			if m.Error != "" {
				name := strings.TrimSpace("MIG instance " + printable(m.UUID))
				problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(g.PCI), Detail: name + ": " + printable(m.Error)})
			}
		}
	}
	if _, read := t.captured[migMinors]; read {
		t.captured[migMinors] = strings.Join(used, "\n") // of the thousands that a driver has
	}
	return problems
}
