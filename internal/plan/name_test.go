package plan

import (
	"slices"
	"strings"
	"testing"
)

// tagsOf returns the tags of a slot with n GPUs of a model, or parts of one.
func tagsOf(model, part string, n int) []string {
	s := Slot{GPUs: slices.Repeat([]SlotGPU{{Model: model, Vendor: "nvidia", Part: part, NUMANode: -1}}, n)}
	s.Queue = queueName("{shape}", s, "box")
	return agentTags(s, "box", "1.2.3", nil)
}

func tagOf(tags []string, key string) string {
	for _, t := range tags {
		if value, ok := strings.CutPrefix(t, key+"="); ok {
			return value
		}
	}
	return ""
}

// TestNames keeps the names that nodes have: another one would register another agent, or leave a
// queue without agents.
func TestNames(t *testing.T) {
	t.Parallel()
	for model, want := range map[string][2]string{ // gpu, gpu-model
		"NVIDIA B200": {"b200", "NVIDIA-B200"}, "NVIDIA H100 80GB HBM3": {"h100", "NVIDIA-H100-80GB-HBM3"}, "NVIDIA L40S-48Q": {"l40s", "NVIDIA-L40S-48Q"},
		"Tesla V100-SXM2-16GB": {"v100", "Tesla-V100-SXM2-16GB"}, "NVIDIA GH200 480GB": {"gh200", "NVIDIA-GH200-480GB"},
		"AMD Instinct MI300X": {"mi300", "AMD-Instinct-MI300X"}, "AMD Instinct MI250X / MI250": {"mi250", "AMD-Instinct-MI250X-MI250"},
		"NVIDIA GeForce RTX 4070 Ti SUPER": {"rtx-4070-ti-super", "NVIDIA-GeForce-RTX-4070-Ti-SUPER"}, "NVIDIA RTX 4000 SFF Ada Generation": {"rtx-4000-sff-ada", "NVIDIA-RTX-4000-SFF-Ada-Generation"},
		"NVIDIA TITAN X (Pascal)": {"titan-x-pascal", "NVIDIA-TITAN-X-Pascal"}, "NVIDIA Graphics Device": {"graphics-device", "NVIDIA-Graphics-Device"},
		"AMD Radeon RX 7900 XTX": {"radeon-rx-7900-xtx", "AMD-Radeon-RX-7900-XTX"}, "NVIDIA device 10de:ffff": {"device-10de-ffff", "NVIDIA-device-10de-ffff"},
		"rtx-4090": {"rtx-4090", "rtx-4090"}, "mi300x": {"mi300", "mi300x"}, "": {"unknown", "unknown"}, "\u65e5\u672c": {"unknown", "unknown"},
		strings.Repeat("x", 62) + "--y": {strings.Repeat("x", 62), strings.Repeat("x", 62)},
	} {
		if got := [2]string{GPUKey(model), tagOf(tagsOf(model, "", 1), "gpu-model")}; got != want {
			t.Errorf("%q is %q, want %q", model, got, want)
		}
	}
	for part, want := range map[string][2]string{
		"1g.23gb": {"1g-23gb", "1g.23gb"}, "1c.3g.40gb": {"1c-3g-40gb", "1c.3g.40gb"}, "1g.24gb+me": {"1g-24gb-me", "1g.24gb-me"},
		"2g.48gb+me.all": {"2g-48gb-me-all", "2g.48gb-me.all"}, "CPX": {"cpx", "CPX"}, "1g.24gb-me": {"1g-24gb-no-me", "1g.24gb-no-me"},
	} {
		tags := tagsOf("NVIDIA B200", part, 1)
		if got := [2]string{tagOf(tags, "queue"), tagOf(tags, "gpu-part")}; got != [2]string{"b200-" + want[0], want[1]} {
			t.Errorf("queue and gpu-part of %s are %q, want %q", part, got, want)
		}
	}
}
