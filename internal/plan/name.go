package plan

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// modelName finds the model in a marketing name: "NVIDIA H100 80GB HBM3" → H100,
// "NVIDIA GeForce RTX 4070 Ti SUPER" → RTX 4070 Ti SUPER, "AMD Instinct MI300X" → MI300X.
var modelName = lazy.Regexp(`(?i)\b((?:RTX(?: PRO)?|GTX|TITAN|Quadro) ?[A-Z]?\d{3,5}(?: ?Ti)?(?: (?:SUPER|D|SFF|Ada|Laptop))*|(?:GB|GH|MI|[ABHLPTV])\d{1,4}[A-Z]?)\b`)

// plainModel matches names in which nothing but words may tell a model from another.
var plainModel = lazy.Regexp(`^[A-Za-z0-9]+(?:[ ()/.:_-]+[A-Za-z0-9]+)*\)?$`)

var (
	// amdBrand matches AMD's names without the vendor. No other vendor's begin like this.
	amdBrand = lazy.Regexp(`^(?:Radeon|Instinct|FirePro|GPU)\b`)
	// otherShape matches shapes that are not a whole GPU, or not a known one.
	otherShape = lazy.Regexp(`.x\d{1,2}$|-(?:\d{1,2}c-)?\d{1,2}g(?:-|$)|-[sdtqc]px$|^cpu$|^unknown$`)
)

// GPUKey returns the short name of a GPU model in queue templates and tags:
// "b200", "h100", "mi300". It accepts a driver's name of the model and the short
// ones that people type. Names of one model have the same key: they differ in memory, form
// factor, case, or the NVIDIA that older drivers leave out.
func GPUKey(model string) string {
	m := modelName().FindString(model)
	if typed := strings.ReplaceAll(model, "-", " "); m == "" && modelName().FindString(typed) == typed {
		m = typed // rtx-4090
	}
	if m != "" {
		key := strings.ToLower(m)
		if strings.HasPrefix(key, "mi") {
			key = strings.TrimSuffix(key, "x") // MI300X is mi300 in the contracts
		}
		return distinct(cleanName(key), model, plainModel().MatchString(model))
	}
	short, nvidia := strings.CutPrefix(model, "NVIDIA ")
	short, amd := strings.CutPrefix(short, "AMD ")
	key, brand := cleanName(strings.ToLower(short)), amdBrand().MatchString(short)
	usual := short == usualModel(cleanName(short)) && (!amd || brand && !nvidia) && (!nvidia || !brand)
	return distinct(key, model, usual && !otherShape().MatchString(key) || model == "")
}

var unsafeName = lazy.Regexp(`[^A-Za-z0-9._-]+`)

// cleanName replaces what a queue name or a tag's value cannot contain. Different texts may
// become the same; see distinct. It returns "unknown" if nothing is left.
func cleanName(s string) string {
	if s = strings.Trim(unsafeName().ReplaceAllString(s, "-"), "-."); s == "" {
		return "unknown"
	}
	return s
}

const maxName = 63 // bytes of a name made from a text

// checked matches names with a checksum.
var checked = lazy.Regexp(`--[0-9a-f]{16}$`)

// distinct returns a name of at most maxName bytes that no other text has: name itself for the
// one text whose own it is, else with a checksum of the text.
func distinct(name, text string, own bool) string {
	if own && len(name) <= maxName && !checked().MatchString(name) {
		return name
	}
	sum := fmt.Sprintf("--%x", sha256.Sum256([]byte(text)))[:18]
	return strings.TrimRight(name[:min(len(name), maxName-len(sum))], "-.") + sum
}

// safeName makes a text fit for a queue name or a tag's value, and different texts different
// names. "" becomes "unknown".
func safeName(s string) string {
	name := cleanName(s)
	return distinct(name, s, name == s && s != "unknown" || s == "")
}

// joinedWords matches what drivers write with dashes, after cleanName: A100-SXM4-80GB,
// A100-PG509-200, RTX 2080 with Max-Q Design, H20-3e, and virtual GPUs such as A40-48Q.
var joinedWords = lazy.Regexp(`-(?:SXM\d?|PCIE|FHHL|DGXS)-\d+GB|[A-Z]\d+-PG\d{3}-\d{3}|PG\d{3}-\d{3}|Max-Q|H20-3e|RTX\d{4}-Ada|-(?:\d{1,2}-)?\d{1,3}[ABCQ]$`)

// deviceID matches what cleanName makes of the ID of a device that has no name.
var deviceID = lazy.Regexp(`\bdevice ([0-9a-f]{4}) ([0-9a-f]{4})$`)

// usualModel returns the one driver's name of a GPU whose own a clean name is.
func usualModel(name string) string {
	var b strings.Builder
	at := 0
	for _, m := range joinedWords().FindAllStringIndex(name, -1) {
		b.WriteString(strings.ReplaceAll(name[at:m[0]], "-", " ") + name[m[0]:m[1]])
		at = m[1]
	}
	b.WriteString(strings.ReplaceAll(name[at:], "-", " "))
	return strings.NewReplacer("TITAN X Pascal", "TITAN X (Pascal)", "MI250X MI250", "MI250X / MI250").
		Replace(deviceID().ReplaceAllString(b.String(), "device $1:$2"))
}

// modelTag returns the value of tag gpu-model.
func modelTag(model string) string {
	name := cleanName(model)
	return distinct(name, model, usualModel(name) == model && model != "unknown" || model == "")
}

var (
	// usualPart matches modes of AMD's partitions and MIG profiles, whose names end in the
	// engines that an instance has besides (+) or lacks (-).
	usualPart = lazy.Regexp(`^(?:[A-Z]{2,4}|(?:\d{1,2}c\.)?\d{1,2}g(?:\.\d{1,4}gb)?(?:[+-][a-z]{1,8}(?:\.all)?){0,4})$`)
	// oddEngine matches engines that read like the words of a name.
	oddEngine = lazy.Regexp(`[+-](?:no|all)(?:[+.-]|$)`)
)

// partTag returns the value of tag gpu-part: 1g.24gb, 1g.24gb-me for 1g.24gb+me, and
// 1g.24gb-no-me for 1g.24gb-me.
func partTag(part string) string {
	return distinct(cleanName(strings.NewReplacer("-", "-no-", "+", "-").Replace(part)), part, usualPart().MatchString(part) && !oddEngine().MatchString(part))
}

// partKey returns the name of a part in a shape: 1g-24gb, cpx.
func partKey(part string) string {
	name := strings.ToLower(strings.NewReplacer("-", "-no-", "+", "-", ".", "-").Replace(part))
	return distinct(cleanName(name), part, usualPart().MatchString(part) && !oddEngine().MatchString(part))
}

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

// agentTags returns the tags of a slot's agent, in the order that people read. The node's name
// is safe.
func agentTags(s Slot, node, version string, extra []string) []string {
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
		tags = append(tags, "gpu-model="+modelTag(first.Model))
		if first.Part != "" {
			tags = append(tags, "gpu-part="+partTag(first.Part))
		}
		if first.NUMANode >= 0 && !slices.ContainsFunc(s.GPUs, func(g SlotGPU) bool { return g.NUMANode != first.NUMANode }) {
			tags = append(tags, fmt.Sprintf("numa=%d", first.NUMANode))
		}
	}
	return append(append(tags, "kbnode="+safeName(version)), extra...)
}
