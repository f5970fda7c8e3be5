package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// LastPath is the last inventory that the node was planned with.
const LastPath = "/var/lib/kbnode/inventory.json"

// lastFile is the content of LastPath.
type lastFile struct {
	WrittenBy string               `json:"written_by"`
	Inventory *inventory.Inventory `json:"inventory"`
}

// ParseLast reads the content of LastPath.
func ParseLast(text []byte) (*inventory.Inventory, error) {
	var f lastFile
	err := json.Unmarshal(text, &f)
	if err == nil && (f.Inventory == nil || f.Inventory.Schema != inventory.Schema) {
		err = errors.New("it was written by another version of kbnode")
	}
	if err != nil {
		return nil, fmt.Errorf("read the last inventory %s: %w", LastPath, err)
	}
	return f.Inventory, nil
}

// renderLast returns the content of LastPath: on one line, because a CPU would take twenty.
func renderLast(inv *inventory.Inventory) (string, error) {
	text, err := json.Marshal(lastFile{"kbnode", inv})
	if err != nil {
		return "", fmt.Errorf("render %s: %w", LastPath, err)
	}
	return string(text) + "\n", nil
}

// used returns what of the inventory this plan depends on, but the GPUs, which slots keep. What else changes is no change
// of the node.
func (b *builder) used() *inventory.Inventory {
	out := &inventory.Inventory{
		Schema: inventory.Schema, OS: inventory.OS{Virt: b.inv.OS.Virt}, CPU: b.inv.CPU, Memory: b.memory,
		GPUs: []inventory.GPU{}, Software: b.inv.Software,
	}
	out.CPU.Model = ""
	if nv := b.inv.NVIDIA; nv != nil && nv.DriverVersion != "" {
		out.NVIDIA = &inventory.NVIDIA{DriverVersion: nv.DriverVersion, CUDAVersion: nv.CUDAVersion}
	}
	if amd := b.inv.AMD; amd != nil && amd.DriverVersion != "" {
		out.AMD = &inventory.AMD{DriverVersion: amd.DriverVersion}
	}
	if b.cfg.Node == "" {
		out.Hostname = b.inv.Hostname
	}
	for _, d := range b.disks {
		if d.Path == agentsDir {
			out.Disks = append(out.Disks, inventory.DiskFree{Path: d.Path, TotalBytes: d.TotalBytes})
		}
	}
	keys := agentKeys(b.cfg, Slot{}, out.Software.Agent.Version, "")
	out.Software.Agent.Keys = only(out.Software.Agent.Keys, func(name string) bool {
		return slices.ContainsFunc(keys, func(k agentKey) bool { return k.name == name })
	})
	d := out.Software.Docker
	out.Software.Docker = inventory.Docker{ // lists are never nil in JSON
		Version: d.Version, RootDir: d.RootDir, CgroupDriver: d.CgroupDriver, StorageDriver: d.StorageDriver,
		CDI: d.CDI, CDIDirs: []string{}, Runtimes: append([]string{}, d.Runtimes...),
	}
	for _, s := range b.Slots {
		for _, name := range s.Each(cdiName) {
			if slices.Contains(d.CDIDevices, name) && !slices.Contains(out.Software.Docker.CDIDevices, name) {
				out.Software.Docker.CDIDevices = append(out.Software.Docker.CDIDevices, name)
			}
		}
	}
	return out
}

// Selection is what the configuration says of which GPUs become which slots. While it says the same, slots keep
// what they have: a name may mean another GPU, or none, once a card was replaced, moved or lost.
type Selection struct {
	GPUs        []string   `json:"gpus,omitempty"`
	All         bool       `json:"all,omitempty"`
	GPUCount    int        `json:"gpu_count,omitempty"`
	GPUsPerSlot int        `json:"gpus_per_slot,omitempty"`
	Groups      [][]string `json:"groups,omitempty"`
}

// selectionOf returns nil if the configuration leaves it to kbnode.
func selectionOf(cfg config.Config) *Selection {
	s := &Selection{All: cfg.GPUs.All && cfg.GPUCount > 0, GPUCount: int(cfg.GPUCount)}
	s.GPUs, s.Groups = append(s.GPUs, cfg.GPUs.List...), append(s.Groups, cfg.Groups...)
	if cfg.GPUsPerSlot > 1 {
		s.GPUsPerSlot = cfg.GPUsPerSlot
	}
	if reflect.DeepEqual(s, &Selection{}) {
		return nil
	}
	return s
}

// Recall returns an inventory in which what could not be read is as last planned.
// It returns an error if something essential was never read.
func Recall(inv *inventory.Inventory, bindings *Bindings) (*inventory.Inventory, error) {
	out := inv.Fill(bindings.Last)
	if agent := inv.Software.Agent; agent.Path != "" && out.Software.Agent.Version == "" {
		return nil, fmt.Errorf("%s does not report its version (%s), which decides how well slots are isolated; run it with --version, fix it or move it away, and try again",
			agent.Path, inv.WhyUnread(inventory.SubjectAgent))
	}
	out.GPUs = withUnreadGPUs(inv, bindings.Slots)
	return out, nil
}

// unlisted returns why a new machine may have GPUs that are not in its inventory; ""
// if all are known.
func unlisted(inv *inventory.Inventory) string {
	for _, subject := range inv.Unread {
		pci, one := strings.CutPrefix(subject, inventory.GPUSubject(""))
		if subject == inventory.SubjectGPUs || one && !slices.ContainsFunc(inv.GPUs, func(g inventory.GPU) bool { return g.PCI == pci }) {
			return inv.WhyUnread(subject)
		}
	}
	return ""
}

// withUnreadGPUs marks the GPUs of slots whose instances NVML does not report, and
// adds those that may exist because the list of GPUs, or what is at their address,
// could not be read.
func withUnreadGPUs(inv *inventory.Inventory, bindings []Binding) []inventory.GPU {
	gpus := slices.Clone(inv.GPUs)
	silent := inv.NVIDIA != nil && inv.NVIDIA.NVMLError != ""
	for _, m := range keptMembers(bindings) {
		listed := slices.ContainsFunc(gpus, func(g inventory.GPU) bool { return g.PCI == m.PCI || g.UUID != "" && strings.EqualFold(g.UUID, m.UUID) })
		for i := range gpus { // even if NVML is gone: this GPU had instances
			g := &gpus[i]
			g.Unread = g.Unread || silent && g.Healthy && g.NVML == nil && m.MIG != nil && (g.UUID == m.UUID || g.PCI == m.PCI)
		}
		if !listed && (slices.Contains(inv.Unread, inventory.SubjectGPUs) || slices.Contains(inv.Unread, inventory.GPUSubject(m.PCI))) {
			gpus = append(gpus, inventory.GPU{
				Vendor: m.Vendor, UUID: m.UUID, PCI: m.PCI, Index: -1, Model: m.Model, NUMANode: m.NUMANode, MemoryNode: m.MemoryNode,
				Minor: -1, RenderMinor: -1, Healthy: true, Unread: true,
			})
		}
	}
	return gpus
}

// SayUnread returns a warning for everything that could not be read.
func SayUnread(inv *inventory.Inventory) (warnings []string) {
	for _, subject := range inv.Unread {
		warnings = append(warnings, fmt.Sprintf("%s: could not be read, so its part of the plan stays as it was: %s", subject, inv.WhyUnread(subject)))
	}
	return warnings
}
