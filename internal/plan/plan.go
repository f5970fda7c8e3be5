// Package plan computes everything that should be true of a machine from its
// inventory and its operator's configuration. It is pure: it touches no file,
// clock, environment or log.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Schema is the version of the JSON that Plan marshals to.
const Schema = 1

// Input is everything that Build depends on.
type Input struct {
	Inventory *inventory.Inventory
	Config    *config.Config // with defaults
	Bindings  *Bindings      // as kept on the machine; nil on a new one
	Drains    []Drain        // as kept on the machine
	Agent     AgentRelease   // as kept on the machine
	Binary    string         // absolute path of kbnode on the machine
	Version   string         // of kbnode
	Runner    string         // SHA-256 of the program that jobs get; "" gives them kbnode itself, in a tree
	// Image is the ID of the image that Config.Image.Name stands for; "" if kbnode does not keep the name there.
	Image string
	// ConfigText is the configuration file to write; "" leaves the existing one.
	ConfigText string
	// ConfigKept is set if the existing configuration file is kbnode's own and states
	// all of Config. An edit made after it was read must not be undone.
	ConfigKept bool
	// Reshape makes slots of the instances and partitions that exist now in place
	// of those that slots have kept: an operator asked for it.
	Reshape bool
}

// Plan is everything that should be true of a machine.
type Plan struct {
	Schema   int      `json:"schema"`
	Node     string   `json:"node"`
	Slots    []Slot   `json:"slots"`
	GPUs     int      `json:"gpus"` // of the machine, in slots or not; parts of a GPU count as one
	Reserved Reserved `json:"reserved"`
	Warnings []string `json:"warnings"`
	// LoanUntil is from when on slots take no jobs: the machine is lent. Zero means always; Build, which has no time zone, leaves it so.
	LoanUntil time.Time `json:"loan_until,omitzero"`

	Users  []User  `json:"users"`
	Dirs   []Dir   `json:"dirs"`
	Files  []File  `json:"files"`
	Slices []Slice `json:"slices"`
	Units  []Unit  `json:"units"`

	Tunables []Tunable `json:"tunables"`
}

// Slot is one GPU (or part of one, several, or none) with its CPUs, memory and
// the one Buildkite agent that may use them.
type Slot struct {
	Index       int       `json:"index"`
	Name        string    `json:"name"` // "gpu0"
	Queue       string    `json:"queue"`
	Shape       string    `json:"shape"` // what it is, in a word: "b200", "b200x4", "b200-1g-23gb", "mi300-cpx", "cpu"
	GPUs        []SlotGPU `json:"gpus"`
	CPUs        string    `json:"cpus"`         // Linux list format
	MemoryNodes string    `json:"memory_nodes"` // Linux list format
	MemoryBytes int64     `json:"memory_bytes"`
	DiskBytes   int64     `json:"disk_bytes"` // of its own file system; 0 for none
	Agent       string    `json:"agent"`      // the agent's name in Buildkite
	Tags        []string  `json:"tags"`       // key=value
	// AgentVersion is the release of its agent; "" is the installed one.
	AgentVersion string  `json:"agent_version,omitempty"`
	User         string  `json:"user"`
	Parked       string  `json:"parked,omitempty"` // why this slot cannot take jobs; "" when it can
	Drains       []Drain `json:"drains,omitempty"` // why it is to take no jobs, an operator's first
}

// UsedGPUs returns how many GPUs are in slots, in whole or in part.
func (p *Plan) UsedGPUs() int {
	used := map[int]bool{}
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			used[g.Number] = true
		}
	}
	return len(used)
}

// Serves reports whether the slot's agent should run.
func (s Slot) Serves() bool { return s.Parked == "" && len(s.Drains) == 0 }

// ParkedWarning returns the plan's warning about a parked slot.
func (s Slot) ParkedWarning() string { return fmt.Sprintf("slot %s is parked: %s", s.Name, s.Parked) }

// Model returns the slot's GPU model for display: "NVIDIA B200", "4 × NVIDIA
// B200", "NVIDIA B200 1g.23gb"; "" if it has no GPU.
func (s Slot) Model() string {
	if len(s.GPUs) == 0 {
		return ""
	}
	model := strings.TrimSpace(s.GPUs[0].Model + " " + s.GPUs[0].Part)
	if n := len(s.GPUs); n > 1 {
		return fmt.Sprintf("%d × %s", n, model)
	}
	return model
}

// Each returns the result of calling f on each of the slot's GPUs.
func (s Slot) Each(f func(SlotGPU) string) []string {
	var list []string
	for _, g := range s.GPUs {
		list = append(list, f(g))
	}
	return list
}

// Vendor returns the vendor of the slot's GPUs: "nvidia" or "amd", or "" if it has none.
func (s Slot) Vendor() string {
	if len(s.GPUs) == 0 {
		return ""
	}
	return s.GPUs[0].Vendor
}

// Devices returns the paths of the device nodes that a job may open.
func (s Slot) Devices() []string {
	nodes := []string{}
	for _, g := range s.GPUs {
		for _, d := range g.Devices {
			if !slices.Contains(nodes, d) {
				nodes = append(nodes, d)
			}
		}
	}
	return nodes
}

// SlotGPU is a GPU of a slot, or a part of one.
type SlotGPU struct {
	Number    int      `json:"number"` // on this machine; parts of a GPU share it
	UUID      string   `json:"uuid"`   // of the whole GPU
	PCI       string   `json:"pci"`
	Vendor    string   `json:"vendor"`
	Model     string   `json:"model"`
	Part      string   `json:"part,omitempty"`      // MIG profile, or AMD's partition mode; "" for a whole GPU
	Instance  string   `json:"instance,omitempty"`  // UUID of the MIG instance as it is now
	Partition int      `json:"partition,omitempty"` // AMD: number within the GPU
	NUMANode  int      `json:"numa_node"`
	Arch      string   `json:"arch,omitempty"`         // "sm_100", "gfx942"; "" if unknown
	Memory    int64    `json:"memory_bytes,omitempty"` // of the GPU or its part; 0 if unknown
	Devices   []string `json:"devices"`                // device nodes a job may open, by path
}

// Name returns the UUID that drivers know it by: the instance's, or else the GPU's.
func (g SlotGPU) Name() string { return cmp.Or(g.Instance, g.UUID) }

// Reserved is what no slot gets.
type Reserved struct {
	CPUs        string `json:"cpus"` // Linux list format
	MemoryBytes int64  `json:"memory_bytes"`
}

// User is a system user with a group of the same name and no login.
type User struct {
	Name string `json:"name"`
	Home string `json:"home"`
}

// Dir is a directory that must exist.
type Dir struct {
	Path  string `json:"path"`
	Mode  uint32 `json:"mode"`
	Owner string `json:"owner"` // a user of the plan or "root", each with its own group; or "root:<a user's group>"
}

// File is a file that must exist with this content. Its first or second line
// says that kbnode wrote it, or it is JSON with "written_by": "kbnode".
type File struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Owner   string `json:"owner"`
	Content string `json:"content,omitempty"`
	// Source is a file of the machine to copy instead of writing Content. Copies
	// keep the modification time: same size and time, same file.
	Source string `json:"source,omitempty"`
	// SHA256 is the checksum of a program that is embedded in kbnode, to write instead of
	// Content.
	SHA256 string `json:"checksum,omitempty"`
	// ModeOnly leaves the content to the file's author. Only the mode and owner are
	// planned, and only if the file exists.
	ModeOnly bool `json:"kept,omitempty"`
	Slot     int  `json:"slot"` // the slot it belongs to; -1 for the node's own
}

// Slice is a systemd slice and the limits that its cgroup must show.
type Slice struct {
	Unit        string   `json:"unit"`
	Slot        int      `json:"slot"`         // -1 for the parent of all
	CPUs        string   `json:"cpus"`         // AllowedCPUs; "" sets none
	MemoryNodes string   `json:"memory_nodes"` // AllowedMemoryNodes; "" sets none
	MemoryBytes int64    `json:"memory_bytes"` // MemoryMax; 0 sets none. MemorySwapMax is 0 with it
	TasksMax    int64    `json:"tasks_max"`    // 0 sets none
	Devices     []Device `json:"devices"`      // with DevicePolicy=closed; empty leaves all open
	Partition   bool     `json:"partition"`    // make it a cpuset partition where the kernel can
}

// Device is one line of a slice's device policy.
type Device struct {
	Path string `json:"path"` // a device node, or "char-<driver>" as systemd has it
	Perm string `json:"perm"` // of "rwm"
}

// Unit is the wanted state of a systemd unit.
type Unit struct {
	Name    string `json:"name"`
	Slot    int    `json:"slot"` // -1 for the node's own
	Enabled bool   `json:"enabled"`
	Active  bool   `json:"active"`
	// Generation identifies what the unit's processes were started with. They
	// carry it in KBNODE_GENERATION, and a running unit with another one needs
	// a restart. "" never requires one.
	Generation string `json:"generation,omitempty"`
}
