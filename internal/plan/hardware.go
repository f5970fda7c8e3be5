package plan

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const gib = int64(1 << 30)

// hardwareTags returns the tags by which pipelines ask for a kind of GPU or driver: sm or gfx, gpu-memory,
// driver and cuda. What is unknown, or differs between the slot's GPUs, has none. A node's own configuration
// may have set them before kbnode did.
func hardwareTags(s Slot, inv *inventory.Inventory) (tags []string) {
	add := func(key, value string) {
		if value != "" {
			tags = append(tags, key+"="+cleanName(value))
		}
	}
	arch := common(s, func(g SlotGPU) string { return g.Arch })
	sm, nvidia := strings.CutPrefix(arch, "sm_")
	gfx, amd := strings.CutPrefix(arch, "gfx")
	switch {
	case nvidia:
		add("sm", sm)
	case amd:
		add("gfx", gfx)
	}
	add("gpu-memory", common(s, memoryTag))
	switch vendor := s.Vendor(); {
	case vendor == "nvidia" && inv.NVIDIA != nil:
		add("driver", inv.NVIDIA.DriverVersion)
		add("cuda", inv.NVIDIA.CUDAVersion)
	case vendor == "amd" && inv.AMD != nil:
		add("driver", inv.AMD.DriverVersion)
	}
	return tags
}

// common returns what f returns for each of the slot's GPUs; "" if they differ.
func common(s Slot, f func(SlotGPU) string) string {
	all := s.Each(f)
	for _, v := range all {
		if v != all[0] {
			return ""
		}
	}
	return cmp.Or(all...)
}

var profileMemory = lazy.Regexp(`\.(\d+)gb`)

// memoryTag returns a GPU's memory as people write it, in GB; "" if it is unknown. A MIG profile names it. A driver
// reports a bit less than a whole GPU has, in GiB: 79.6 for an H100 with 80, 140.4 for an H200 with 141.
func memoryTag(g SlotGPU) string {
	switch m := profileMemory().FindStringSubmatch(g.Part); {
	case m != nil:
		return m[1]
	case g.Memory < gib: // of a graphics chip that borrows the machine's, or no number
		return ""
	}
	return strconv.FormatInt((g.Memory+gib-1)/gib, 10)
}
