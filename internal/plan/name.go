package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// modelName finds the model in a marketing name: "NVIDIA H100 80GB HBM3" → H100,
// "NVIDIA GeForce RTX 4070 Ti SUPER" → RTX 4070 Ti SUPER, "AMD Instinct MI300X" → MI300X.
var modelName = lazy.Regexp(`(?i)\b((?:RTX(?: PRO)?|GTX|TITAN|Quadro) ?[A-Z]?\d{3,5}(?: ?Ti)?(?: (?:SUPER|D|SFF|Ada|Laptop))*|(?:GB|GH|MI|[ABHLPTV])\d{1,4}[A-Z]?)\b`)

// GPUKey returns the short name of a GPU model in queue templates and tags:
// "b200", "h100", "mi300". It accepts a driver's name of the model and the short
// ones that people type. Names of one model have the same key: they differ in memory, form
// factor, case, or the NVIDIA that older drivers leave out.
func GPUKey(model string) string {
	m := modelName().FindString(model)
	if typed := strings.ReplaceAll(model, "-", " "); m == "" && modelName().FindString(typed) == typed {
		m = typed // rtx-4090
	}
	if m == "" {
		return cleanName(strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(model, "NVIDIA "), "AMD ")))
	}
	key := strings.ToLower(m)
	if strings.HasPrefix(key, "mi") {
		key = strings.TrimSuffix(key, "x") // MI300X is mi300 in the contracts
	}
	return cleanName(key)
}

var unsafeName = lazy.Regexp(`[^A-Za-z0-9._-]+`)

const maxName = 63 // bytes of a name made from a text

// cleanName replaces what a queue name or a tag's value cannot contain. It returns "unknown" if
// nothing is left.
func cleanName(s string) string {
	s = strings.Trim(unsafeName().ReplaceAllString(s, "-"), "-.")
	if s == "" {
		return "unknown"
	}
	return strings.TrimRight(s[:min(len(s), maxName)], "-.")
}

// partTag returns the value of tag gpu-part. MIG profiles end in the engines that an instance has
// besides or lacks: 1g.24gb+me is 1g.24gb-me, and 1g.24gb-me is 1g.24gb-no-me.
func partTag(part string) string {
	return cleanName(strings.NewReplacer("-", "-no-", "+", "-").Replace(part))
}

// partKey returns the name of a part in a shape: 1g-24gb, cpx.
func partKey(part string) string { return strings.ToLower(strings.ReplaceAll(partTag(part), ".", "-")) }

// queueName fills a queue template for one slot of a node with a safe name.
func queueName(template string, s Slot, node string) string {
	vendor, gpu := "cpu", "cpu"
	if len(s.GPUs) > 0 {
		vendor, gpu = s.Vendor(), GPUKey(s.GPUs[0].Model)
	}
	return strings.NewReplacer(
		"{vendor}", vendor, "{gpu}", gpu, "{shape}", shapeKey(s),
		"{index}", strconv.Itoa(s.Index), "{node}", node,
	).Replace(template)
}

// OutTag is the tag of an agent that stands in for a slot out of service. Its value is the slot's state, and the note of its
// pause is the reason.
const OutTag = "out-of-service"

// OutSinceTag is the tag of such an agent that says since when a slot is drained.
const OutSinceTag = "out-since"

// OutStates are the values of OutTag.
var OutStates = []string{"parked", "drained", "failed"}

// agentTags returns the tags of a slot's agent, in the order that people read. The node's name
// is clean. An extra tag replaces one of hardware.
func agentTags(s Slot, node, version string, hardware, extra []string) []string {
	tags := []string{"queue=" + s.Queue}
	if len(s.GPUs) > 0 {
		tags = append(tags, "gpu="+GPUKey(s.GPUs[0].Model))
	}
	tags = append(tags, "gpu-index="+strconv.Itoa(s.Index), "node="+node)
	if n := len(s.GPUs); n > 1 {
		tags = append(tags, "gpus="+strconv.Itoa(n))
	} else if n == 1 && s.GPUs[0].UUID != "" {
		tags = append(tags, "gpu-uuid="+s.GPUs[0].UUID)
	}
	if len(s.GPUs) > 0 {
		first := s.GPUs[0]
		tags = append(tags, "gpu-model="+cleanName(first.Model))
		if first.Part != "" {
			tags = append(tags, "gpu-part="+partTag(first.Part))
		}
		if first.NUMANode >= 0 && !slices.ContainsFunc(s.GPUs, func(g SlotGPU) bool { return g.NUMANode != first.NUMANode }) {
			tags = append(tags, fmt.Sprintf("numa=%d", first.NUMANode))
		}
	}
	for _, t := range hardware {
		key, _, _ := strings.Cut(t, "=")
		if !slices.ContainsFunc(extra, func(own string) bool { return strings.HasPrefix(own, key+"=") }) {
			tags = append(tags, t)
		}
	}
	return append(append(tags, "kbnode="+cleanName(version)), extra...)
}
