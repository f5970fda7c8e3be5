package runner

import (
	"context"
	"encoding/json"
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

// gpusWithoutTorch asks the vendors' tools, as the Python engine does where
// torch is not installed: NVIDIA's answer is passed on with its newlines.
func (e *engine) gpusWithoutTorch(ctx context.Context) (gpu string, count int, runtime string) {
	if out, ok := e.tool(ctx, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader"); ok {
		return out, strings.Count(out, "\n"), runtimeCUDA
	}
	if names := e.rocmNames(ctx); len(names) > 0 {
		return names[0], len(names), runtimeROCm
	}
	return "", 1, ""
}

// gpusOfTorch names the GPUs that torch would use. None means that
// torch.cuda.is_available() is false.
func (e *engine) gpusOfTorch(ctx context.Context, t torchVersion) (names []string, runtime string) {
	switch {
	case t.hip != "":
		return e.rocmNames(ctx), runtimeROCm
	case t.cuda != "":
		visible, limited := lookupEnv(e.env, "CUDA_VISIBLE_DEVICES")
		return visibleGPUs(e.nvidiaGPUs(ctx), visible, limited), runtimeCUDA
	}
	return nil, ""
}

// nvidiaGPU is a GPU with the two names by which a job may be given it.
type nvidiaGPU struct{ name, uuid string }

func (e *engine) nvidiaGPUs(ctx context.Context) []nvidiaGPU {
	var gpus []nvidiaGPU
	if out, ok := e.tool(ctx, "nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"); ok {
		for line := range strings.Lines(out) {
			if uuid, name, ok := strings.Cut(line, ","); ok {
				gpus = append(gpus, nvidiaGPU{strings.TrimSpace(name), strings.TrimSpace(uuid)})
			}
		}
		return gpus
	}
	// Without the tool: what the driver says, in the order of the PCI addresses.
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var gpu nvidiaGPU
		for line := range strings.Lines(string(text)) {
			switch k, v, _ := strings.Cut(line, ":"); k {
			case "Model":
				gpu.name = strings.TrimSpace(v)
			case "GPU UUID":
				gpu.uuid = strings.TrimSpace(v)
			}
		}
		gpus = append(gpus, gpu)
	}
	return gpus
}

// visibleGPUs applies CUDA_VISIBLE_DEVICES: indices or beginnings of UUIDs,
// up to the first that is not valid.
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

// rocmNames reads rocm-smi's JSON: {"card0": {"Card Series": NAME, …}, …}. Its
// versions spell the key differently.
func (e *engine) rocmNames(ctx context.Context) []string {
	out, ok := e.tool(ctx, "rocm-smi", "--showproductname", "--json")
	if !ok {
		return nil
	}
	var cards map[string]map[string]any
	if err := json.Unmarshal([]byte(out), &cards); err != nil {
		return nil
	}
	var names []string
	for _, card := range slices.SortedFunc(maps.Keys(cards), func(a, b string) int { return cardNumber(a) - cardNumber(b) }) {
		for key, v := range cards[card] {
			if name, ok := v.(string); ok && strings.EqualFold(key, "card series") {
				names = append(names, name)
			}
		}
	}
	return names
}

func cardNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "card"))
	if err != nil {
		return -1
	}
	return n
}
