package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// modelName finds the model in a marketing name: "NVIDIA H100 80GB HBM3" → H100,
// "NVIDIA GeForce RTX 4090" → RTX 4090, "AMD Instinct MI300X" → MI300X.
var modelName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b((?:RTX(?: PRO)?|GTX|TITAN|Quadro) ?[A-Z]?\d{3,5}|(?:GB|GH|MI|[ABHLPTV])\d{1,4}[A-Z]?)\b`)
})

// gpuKey is the short name of a GPU model in queue templates and tags: "b200",
// "h100", "mi300". The contracts' GPU types use the same.
func gpuKey(model string) string {
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

var unsafeName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[^A-Za-z0-9._-]+`)
})

// safeName makes a text fit for a queue name or a tag's value.
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
	return strings.NewReplacer(
		"{vendor}", s.Vendor, "{gpu}", gpuKey(s.Model),
		"{index}", strconv.Itoa(s.Slot), "{node}", safeName(node),
	).Replace(template)
}

// agentTags are the tags of a slot's agent, in the order that people read.
func agentTags(s bound, queue, node, version string, extra []string) []string {
	tags := []string{
		"queue=" + queue,
		"gpu=" + gpuKey(s.Model),
		"gpu-index=" + strconv.Itoa(s.Slot),
		"node=" + safeName(node),
	}
	if s.UUID != "" {
		tags = append(tags, "gpu-uuid="+s.UUID)
	}
	tags = append(tags, "gpu-model="+safeName(s.Model))
	if s.NUMANode >= 0 {
		tags = append(tags, fmt.Sprintf("numa=%d", s.NUMANode))
	}
	return append(append(tags, "kbnode="+safeName(version)), extra...)
}
