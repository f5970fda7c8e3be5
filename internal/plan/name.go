package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// modelName finds the model in a marketing name: "NVIDIA H100 80GB HBM3" → H100,
// "NVIDIA GeForce RTX 4090" → RTX 4090, "AMD Instinct MI300X" → MI300X.
var modelName = lazy.Regexp(`(?i)\b((?:RTX(?: PRO)?|GTX|TITAN|Quadro) ?[A-Z]?\d{3,5}|(?:GB|GH|MI|[ABHLPTV])\d{1,4}[A-Z]?)\b`)

// GPUKey returns the short name of a GPU model in queue templates and tags:
// "b200", "h100", "mi300". It accepts a driver's name of the model and the short
// ones that people type.
func GPUKey(model string) string {
	m := modelName().FindString(model)
	if m == "" {
		m = strings.TrimPrefix(strings.TrimPrefix(model, "NVIDIA "), "AMD ")
	}
	key := strings.ToLower(m)
	if strings.HasPrefix(key, "mi") {
		key = strings.TrimSuffix(key, "x") // MI300X is mi300 in the contracts
	}
	return safeName(key)
}

var unsafeName = lazy.Regexp(`[^A-Za-z0-9._-]+`)

// safeName makes a text fit for a queue name or a tag's value. "" becomes "unknown".
func safeName(s string) string {
	s = strings.Trim(unsafeName().ReplaceAllString(s, "-"), "-.")
	if len(s) > 63 {
		s = s[:63]
	}
	if s == "" {
		return "unknown"
	}
	return s
}

// queueName fills a queue template for one slot.
func queueName(template string, s bound, node string) string {
	vendor, gpu := "cpu", "cpu"
	if len(s.members) > 0 {
		vendor, gpu = s.members[0].Vendor, GPUKey(s.members[0].Model)
	}
	return strings.NewReplacer(
		"{vendor}", vendor, "{gpu}", gpu, "{shape}", shapeKey(s),
		"{index}", strconv.Itoa(s.Slot), "{node}", safeName(node),
	).Replace(template)
}

// agentTags returns the tags of a slot's agent, in the order that people read.
func agentTags(s bound, queue, node, version string, extra []string) []string {
	tags := []string{"queue=" + queue}
	if len(s.members) > 0 {
		tags = append(tags, "gpu="+GPUKey(s.members[0].Model))
	}
	tags = append(tags, "gpu-index="+strconv.Itoa(s.Slot), "node="+safeName(node))
	switch u := s.members; {
	case len(u) > 1:
		tags = append(tags, "gpus="+strconv.Itoa(len(u)))
	case len(u) == 1 && u[0].UUID != "":
		tags = append(tags, "gpu-uuid="+u[0].UUID)
	}
	if len(s.members) > 0 {
		first := s.members[0]
		tags = append(tags, "gpu-model="+safeName(first.Model))
		if part := first.Part(); part != "" {
			tags = append(tags, "gpu-part="+safeName(part))
		}
		if one := !slices.ContainsFunc(s.members, func(u resolved) bool { return u.NUMANode != first.NUMANode }); one && first.NUMANode >= 0 {
			tags = append(tags, fmt.Sprintf("numa=%d", first.NUMANode))
		}
	}
	return append(append(tags, "kbnode="+safeName(version)), extra...)
}
