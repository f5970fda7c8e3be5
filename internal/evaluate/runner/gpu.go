package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	runtimeCUDA = "CUDA"
	runtimeROCm = "ROCm"
)

// gpusWithoutTorch asks the vendors' tools, as the Python engine does if torch is not
// installed. It returns NVIDIA's answer with its newlines.
func (e *engine) gpusWithoutTorch(ctx context.Context) (gpu string, count int, runtime string) {
	if out, ok := e.tool(ctx, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader"); ok {
		return out, strings.Count(out, "\n"), runtimeCUDA
	}
	if names, ok := e.rocmNames(ctx); ok {
		return strings.Join(names[:min(1, len(names))], ""), len(names), runtimeROCm
	}
	return "", 1, ""
}

// gpusOfTorch returns the names of the GPUs that torch would use. If there are none,
// torch.cuda.is_available() is false.
func (e *engine) gpusOfTorch(ctx context.Context, t torchVersion) (names []string, runtime string) {
	switch {
	case t.hip != "":
		names, _ := e.rocmNames(ctx)
		return names, runtimeROCm
	case t.cuda != "":
		visible, limited := lookupEnv(e.env, "CUDA_VISIBLE_DEVICES")
		return visibleGPUs(e.nvidiaGPUs(ctx), visible, limited), runtimeCUDA
	}
	return nil, ""
}

// nvidiaGPU is the model name and the UUID of a GPU.
type nvidiaGPU struct{ name, uuid string }

func (e *engine) nvidiaGPUs(ctx context.Context) []nvidiaGPU {
	var gpus []nvidiaGPU
	if out, ok := e.tool(ctx, "nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"); ok {
		for line := range strings.Lines(out) {
			if uuid, name, ok := strings.Cut(line, ","); ok {
				gpus = append(gpus, nvidiaGPU{strings.TrimSpace(name), strings.TrimSpace(uuid)})
			}
		}
	}
	return gpus
}

// visibleGPUs applies CUDA_VISIBLE_DEVICES: indices or prefixes of UUIDs, up to the
// first that is not valid. If limited is false, the variable is not set.
func visibleGPUs(gpus []nvidiaGPU, visible string, limited bool) []string {
	var names []string
	if !limited {
		for _, g := range gpus {
			names = append(names, g.name)
		}
		return names
	}
	for id := range strings.SplitSeq(visible, ",") {
		id = strings.TrimSpace(id)
		i, err := strconv.Atoi(id)
		if err != nil {
			i = slices.IndexFunc(gpus, func(g nvidiaGPU) bool { return id != "" && strings.HasPrefix(g.uuid, id) })
			if strings.HasPrefix(id, "MIG-") && len(gpus) > 0 {
				i = 0 // an instance; the job sees the GPU that it is on
			}
		}
		if i < 0 || i >= len(gpus) {
			break
		}
		names = append(names, gpus[i].name)
	}
	return names
}

// rocmNames returns the names of the GPUs that rocm-smi lists: {"card0": {"Card
// Series": NAME, …}, …, "system": …}, or the cards as a list. Versions spell the key
// differently; a card without it has an empty name. Images of newer ROCm may lack the
// tool; rocmNames then asks the driver. If neither answers, ok is false.
func (e *engine) rocmNames(ctx context.Context) (names []string, ok bool) {
	out, ok := e.tool(ctx, "rocm-smi", "--showproductname", "--json")
	var answer any
	if !ok || json.Unmarshal([]byte(out), &answer) != nil {
		names = kfdNames("/sys", "/dev")
		return names, len(names) > 0
	}
	list, _ := answer.([]any)
	cards, _ := answer.(map[string]any)
	for _, key := range slices.SortedFunc(maps.Keys(cards), byNumber) {
		if strings.HasPrefix(key, "card") {
			list = append(list, cards[key])
		}
	}
	for _, card := range list {
		name := ""
		about, _ := card.(map[string]any)
		for key, v := range about {
			if s, ok := v.(string); ok && strings.EqualFold(key, "card series") {
				name = s
			}
		}
		names = append(names, name)
	}
	return names, true
}

// kfdNames returns the names of the GPUs that the compute driver shows and whose render
// nodes exist here, as ROCm would count them: the board's name, or else the compiler's
// name of the GPU. The driver hides GPUs from a container whose cgroup may not open
// them.
func kfdNames(sys, dev string) (names []string) {
	nodes, _ := filepath.Glob(sys + "/class/kfd/kfd/topology/nodes/*/properties")
	slices.SortFunc(nodes, byNumber)
	for _, file := range nodes {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		p := map[string]int64{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			p[name], _ = strconv.ParseInt(value, 10, 64)
		}
		if p["simd_count"] == 0 {
			continue // a CPU
		}
		if _, err := os.Stat(fmt.Sprintf("%s/dri/renderD%d", dev, p["drm_render_minor"])); err != nil {
			continue
		}
		// The lowest bits are a partition's number; the board is at function 0.
		at := p["location_id"]
		board, _ := os.ReadFile(fmt.Sprintf("%s/bus/pci/devices/%04x:%02x:%02x.0/product_name", sys, p["domain"], at>>8&0xff, at>>3&0x1f))
		name := strings.TrimSpace(string(board))
		if v := p["gfx_target_version"]; name == "" {
			name = fmt.Sprintf("gfx%d%x%x", v/10000, v/100%100, v%100)
		}
		names = append(names, name)
	}
	return names
}

// byNumber orders names that differ in a number: card9 is before card10.
func byNumber(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }
