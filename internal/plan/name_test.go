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
	return agentTags(s, "box", "1.2.3", nil, nil)
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

// TestOwned asks which patterns match a path or a name.
func TestOwned(t *testing.T) {
	t.Parallel()
	var earlier []string
	for _, e := range EarlierFiles {
		earlier = append(earlier, e.Pattern)
	}
	const none = -2 // no pattern matches
	for _, tt := range []struct {
		patterns []string // nil for those of Owns
		slots    map[string]int
	}{
		{nil, map[string]int{
			"/etc/systemd/system/buildkite.slice": -1, HooksDir + "/environment": -1, BindingsPath: -1,
			UnitDir + "/" + SliceName(3): 3, UnitDir + "/" + AgentUnit(12): 12, UnitDir + "/" + JobSocket(0): 0, UnitDir + "/" + JobService(10): 10, SlotPolicyPath(7): 7, AgentDir(5) + "/buildkite-agent.cfg": 5,
			// A drop-in of an operator, and names that look like kbnode's.
			UnitDir + "/" + AgentUnit(0) + ".d/50-mine.conf": none, UnitDir + "/buildkite-gpu0x.slice": none, UnitDir + "/buildkite-gpu00.slice": none,
			UnitDir + "/kbnode-job-gpu0@1-7-0.service": none, UnitDir + "/buildkite-gpu99999999999999999999.slice": none, UnitDir + "/buildkite-gpu.slice": none,
			AgentDir(5) + "/a/b": none, AgentDir(5): none, "/etc/buildkite-agent/buildkite-agent-gpu0.cfg": none, UnitDir + "/docker.service": none,
		}},
		{OwnedUsers, map[string]int{
			UserName(0): 0, UserName(12): 12, GitUser: -1,
			"kbnode-gpu": none, "kbnode-gpu07": none, "kbnode-gpu0x": none, "kbnode-git0": none, "kbnode": none, "alice": none,
		}},
		{earlier, map[string]int{
			"/etc/buildkite-agent/buildkite-agent-gpu12.cfg": 12, "/etc/cron.d/kernelbot-update": -1, HooksDir + "/pre-command": -1,
			// An agent without a GPU, what an editor left, an example of a hook, and what a hook reads.
			"/etc/buildkite-agent/buildkite-agent.cfg": none, "/etc/buildkite-agent/buildkite-agent-gpu0.cfg~": none, "/etc/cron.d/kernelbot": none,
			HooksDir + "/pre-command.sample": none, HooksDir + "/lib.sh": none,
		}},
	} {
		for name, want := range tt.slots {
			got := none
			if slot, ok := Owns(name); ok && tt.patterns == nil {
				got = slot
			}
			for _, pattern := range tt.patterns {
				if slot, ok := MatchOwned(pattern, name); ok {
					got = slot
				}
			}
			if got != want {
				t.Errorf("%s is of slot %d, want %d", name, got, want)
			}
		}
	}
}
