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

// TestUsualNames keeps the names that nodes have: another one would register another agent, or
// leave a queue without agents.
func TestUsualNames(t *testing.T) {
	t.Parallel()
	for _, model := range []string{
		"NVIDIA B200", "NVIDIA B300 SXM6 AC", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA GB200",
		"NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800-SXM4-80GB", "NVIDIA H20-3e", "NVIDIA PG506-230",
		"Tesla V100-SXM2-16GB", "Tesla V100-FHHL-16GB", "Tesla V100-DGXS-32GB", "Tesla T4", "Tesla K80", "NVIDIA L40S-48Q", "NVIDIA A100-4-20C", "NVIDIA RTX6000-Ada-24Q",
		"NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 2080 with Max-Q Design", "NVIDIA TITAN X (Pascal)", "NVIDIA TITAN Xp", "Quadro RTX 8000",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX 6000 Ada Generation",
		"NVIDIA Graphics Device", "NVIDIA device 10de:ffff", "AMD Instinct MI300X", "AMD Instinct MI300X VF", "AMD Instinct MI250X / MI250", "AMD Radeon RX 7900 XTX", "AMD GPU 67df", "AMD GPU",
	} {
		was := strings.Trim(unsafeName().ReplaceAllString(model, "-"), "-.")
		if got := tagOf(tagsOf(model, "", 1), "gpu-model"); got != was {
			t.Errorf("gpu-model of %q is %q, and was %q", model, got, was)
		}
		if got := GPUKey(model); checked().MatchString(got) {
			t.Errorf("GPUKey(%q) is %q", model, got)
		}
	}
	for model, want := range map[string]string{
		"NVIDIA Graphics Device": "graphics-device", "Tesla K80": "tesla-k80", "NVIDIA Tesla K80": "tesla-k80", "AMD Radeon RX 7900 XTX": "radeon-rx-7900-xtx",
		"NVIDIA B200": "b200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA L40S": "l40s", "Tesla V100-SXM2-16GB": "v100",
		"NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GH200 480GB": "gh200", "AMD Instinct MI300X": "mi300", "AMD Instinct MI210": "mi210",
		"NVIDIA device 10de:ffff": "device-10de-ffff", "": "unknown",
		"AMD GPU 67df": "gpu-67df", "rtx-4090": "rtx-4090", "RTX-4090": "rtx-4090", "mi300x": "mi300", "RTX PRO 6000": "rtx-pro-6000",
	} {
		if got := GPUKey(model); got != want {
			t.Errorf("GPUKey(%q) is %q, want %q", model, got, want)
		}
	}
	for part, want := range map[string][2]string{
		"1g.23gb": {"1g-23gb", "1g.23gb"}, "1c.3g.40gb": {"1c-3g-40gb", "1c.3g.40gb"}, "1g.24gb+me": {"1g-24gb-me", "1g.24gb-me"},
		"2g.48gb+me.all": {"2g-48gb-me-all", "2g.48gb-me.all"}, "4g.96gb+gfx": {"4g-96gb-gfx", "4g.96gb-gfx"}, "7g": {"7g", "7g"}, "CPX": {"cpx", "CPX"},
		"1g.24gb-me": {"1g-24gb-no-me", "1g.24gb-no-me"},
	} {
		tags := tagsOf("NVIDIA B200", part, 1)
		if got := [2]string{tagOf(tags, "queue"), tagOf(tags, "gpu-part")}; got != [2]string{"b200-" + want[0], want[1]} {
			t.Errorf("queue and gpu-part of %s are %q, want %q", part, got, want)
		}
	}
	for _, node := range []string{"node1", "gpu-node-1", "ip-10-0-0-1.ec2.internal", "box_2", "node-0123456789ab", strings.Repeat("n", 63)} {
		if got := safeName(node); got != node {
			t.Errorf("the name of node %s is %s", node, got)
		}
	}
}

// TestDistinctNames gives texts that differ little different names. Each list is of one kind.
func TestDistinctNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70)
	texts := []string{
		"", "unknown", "cpu", "a", "a-", "-a", "a.", "a b", "a-b", "a--b", "a_b", "a.b", "a+b", "a/b", "a:b", "a  b", " a b", "a b ", "a(b)", "a b\u00a0", "ä", "ö", "日本", "🙂", "a🙂b",
		long, long + "y", long[:62] + "-", long[:63], long[:63] + "z", "a--0123456789abcdef", "A100-SXM4-80GB", "A100 SXM4-80GB", "A100 SXM4 80GB", "A100-SXM4 80GB",
	}
	parts := []string{
		"1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb.me", "1g.24gb+no-me", "1g.24gb+no+me", "1g.24gb+no.me", "1g.24gb--me", "1g.24gb-no-me", "1g.24gb+me.all", "1g.24gb+me+all", "1g.24gb-me.all", "1g.24gb-me-all",
		"1g.24gb+gfx+me", "1g.24gb+gfx-me", "1g.24gb+gfx.me", "1g-24gb", "1g+24gb", "1c.1g.24gb", "1c-1g.24gb", "1G.24gb", "CPX", "cpx", "Cpx", "1g.24gb+ME", "1g.24gb+me2", "me", "24", "1g.24gb+me--0123456789abcdef",
	}
	var nvidia []string
	for _, text := range texts {
		nvidia = append(nvidia, "NVIDIA "+text)
	}
	each := func(kind string, list []string, name func(string) string) {
		textOf := map[string]string{}
		for _, text := range list {
			got := name(text)
			if other, ok := textOf[got]; ok {
				t.Errorf("%s: %q and %q are both %q", kind, other, text, got)
			}
			textOf[got] = text
			if len(got) > maxName && kind != "queue" || got != cleanName(got) {
				t.Errorf("%s: %q is %q, which is no name", kind, text, got)
			}
			partKeyed, lower := kind == "queue" || kind == "part", strings.ToLower(got) == got
			if partKeyed && !lower {
				t.Errorf("%s: %q is %q", kind, text, got)
			}
		}
	}
	each("node", texts, safeName)
	each("gpu-model", slices.Concat(texts, nvidia), modelTag)
	// Of models that nothing but case or NVIDIA tells apart, the key is the same.
	each("gpu", slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return strings.HasPrefix(s, "A100") }), GPUKey)
	each("gpu", []string{"NVIDIA Foo", "AMD Foo", "AMD NVIDIA Foo", "NVIDIA AMD Foo", "NVIDIA Radeon", "AMD Radeon"}, GPUKey)
	each("gpu", []string{
		"NVIDIA H100 80GB HBM3", "NVIDIA H100+", "NVIDIA H100-", "NVIDIA H100\u200b", "NVIDIA H100\u00e9", "NVIDIA +H100", "NVIDIA H200",
		"NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4070", "NVIDIA GeForce RTX 4070 SUPER",
		"NVIDIA GeForce RTX 4070 Ti", "NVIDIA GeForce RTX 4070 Ti SUPER", "Quadro RTX 4000", "NVIDIA RTX 4000 Ada Generation", "NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA RTX A4000",
	}, GPUKey)
	each("gpu-part", parts, partTag)
	each("part", parts, partKey)

	// A model that ends like a shape is no such shape.
	type shape struct {
		model, part string
		n           int
	}
	shapes := []shape{{"B200", "", 1}, {"B200", "", 4}, {"Foo", "", 1}, {"Foo", "", 4}, {"Foox4", "", 1}, {"Foo x4", "", 1}, {"Foo 1g 24gb", "", 1}, {"Foo", "1g.24gb", 1}, {"Foo", "1g.24gb", 4}, {"Foo", "1g.24gbx4", 1}, {"Foo CPX", "", 1}, {"Foo", "CPX", 1}, {"Foo", "", 99}, {"", "", 1}}
	shapeOf := map[string]shape{}
	for _, s := range shapes {
		queue := tagOf(tagsOf(s.model, s.part, s.n), "queue")
		if other, ok := shapeOf[queue]; ok {
			t.Errorf("%+v and %+v have queue %s", other, s, queue)
		}
		shapeOf[queue] = s
	}
}
