package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// JobPolicy is what the containers of one slot are created with, whatever the
// pipeline asks for. It is the content of SlotPolicyPath(k), written by root
// and read by the processes that run the slot's jobs.
type JobPolicy struct {
	WrittenBy   string `json:"written_by"` // "kbnode"; marks the file as ours
	Slot        int    `json:"slot"`
	Name        string `json:"name"`  // "gpu0"
	User        string `json:"user"`  // who may use the socket, by its group
	Slice       string `json:"slice"` // cgroup parent: "buildkite-gpu0.slice"
	CPUs        string `json:"cpus"`
	MemoryNodes string `json:"memory_nodes"`
	MemoryBytes int64  `json:"memory_bytes"` // of the slice; containers share it
	PidsLimit   int64  `json:"pids_limit"`
	DiskBytes   int64  `json:"disk_bytes"` // of the slot's file system at DiskMount; 0 for none
	ShmBytes    int64  `json:"shm_bytes"`
	// TimeLimitSeconds is how long a job may take before it is ended; 0 for no limit.
	TimeLimitSeconds int64 `json:"time_limit_seconds,omitempty"`

	Profile string   `json:"profile"`         // config.ProfileCompatible or ProfileStrict
	Network string   `json:"network"`         // config.NetworkBridge or NetworkInternet, with which a job may still choose none; or NetworkNone
	Images  []string `json:"images,omitzero"` // regular expressions; nil means all, and an empty list none
	// Repositories are regular expressions of the repositories that jobs may check out. Nil and an
	// empty list mean none.
	Repositories []string `json:"repositories"`
	// Registries are the registries with private addresses from which jobs may
	// pull, as host or host:port.
	Registries []string `json:"registries,omitempty"`
	// Networks are the private destinations that jobs may reach with
	// config.NetworkInternet, in the format of config.ParseDestination.
	Networks []string `json:"allowed_networks,omitempty"`
	// NodeImage is the image that pipelines of this node name. No job removes it.
	NodeImage string `json:"node_image,omitempty"`
	// KeptImage is the image name that kbnode updates by itself; "" for none. A
	// job's pull would move it, for all slots, to an image that no canary ran.
	KeptImage string `json:"kept_image,omitempty"`

	Vendor string      `json:"vendor"` // "nvidia", "amd"; "" for a slot without a GPU
	GPUs   []PolicyGPU `json:"gpus"`
	// CDIDevices are the device names to ask the engine for, such as
	// nvidia.com/gpu=GPU-…; empty if the engine has no CDI for them.
	CDIDevices []string `json:"cdi_devices,omitempty"`
	// DeviceRequests are the UUIDs to ask the engine's NVIDIA runtime for if
	// there is no CDI; empty otherwise.
	DeviceRequests []string `json:"device_requests,omitempty"`
	// DeviceNodes are the nodes to pass by path if there is no CDI: alone, or with
	// DeviceRequests, whose hook makes changes that systemd would undo.
	DeviceNodes []string `json:"device_nodes"`

	// Hooks are the site's own programs around each job; nil for none.
	Hooks *Hooks `json:"hooks,omitempty"`

	Env          []string `json:"env"`              // NAME=value, set in every container
	WorkRoot     string   `json:"work_root"`        // mounts must be below it: the checkouts
	Binary       string   `json:"binary"`           // of kbnode on the node
	Runner       string   `json:"runner,omitempty"` // what containers get in place of Binary; see Program
	DockerSocket string   `json:"docker_socket"`
	Socket       string   `json:"socket"` // where systemd listens for the slot's jobs
}

// Hooks are programs of root's that run on the node for a slot, and get nothing of a job.
type Hooks struct {
	Prolog       string `json:"prolog,omitempty"` // before a job's container is made; "" for none
	Epilog       string `json:"epilog,omitempty"` // after it was removed; "" for none
	LimitSeconds int64  `json:"limit_seconds"`    // of each
	Node         string `json:"node"`             // what the machine is called
}

// HookLimit returns how long each of a slot's hooks may take; 0 if it has none.
func (p JobPolicy) HookLimit() time.Duration {
	if p.Hooks == nil {
		return 0
	}
	return time.Duration(p.Hooks.LimitSeconds) * time.Second
}

// PolicyGPU is a GPU of a slot, or a part of one.
type PolicyGPU struct {
	UUID      string   `json:"uuid"` // of the whole GPU
	PCI       string   `json:"pci"`
	Instance  string   `json:"instance,omitempty"`  // UUID of the MIG instance
	Part      string   `json:"part,omitempty"`      // MIG profile, or AMD's partition mode; "" for a whole GPU
	Partition int      `json:"partition,omitempty"` // AMD: number within the GPU
	Nodes     []string `json:"nodes"`               // its device nodes, by path
}

// Program returns the file that is mounted read-only at ContainerBinary, and at the path that
// kbnode has on the node.
func (p JobPolicy) Program() string { return cmp.Or(p.Runner, p.Binary) }

// ContainerBinary is the path of kbnode in a job's container.
const ContainerBinary = "/usr/local/bin/kbnode"

// ReservedEnv are the names, or prefixes that end in *, that no job may give a variable: what slotEnv sets,
// what would choose GPUs or libraries, and what would let a job act as the agent.
var ReservedEnv = []string{
	"NVIDIA_*", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
	"LD_*", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_AGENT_JOB_API_*", "BUILDKITE_REQUEST_HEADER_*", "KBNODE_*",
	"KERNELBOT_GPU_INDEX", "KERNELBOT_CPUSET", "KERNELBOT_CPUS", "KERNELBOT_MEMORY",
}

func (b *builder) jobPolicy(s Slot) (JobPolicy, error) {
	limit, err := b.cfg.Job.Limit()
	if err != nil {
		return JobPolicy{}, fmt.Errorf("job.time_limit: %w", err)
	}
	pol := JobPolicy{
		WrittenBy: "kbnode", Slot: s.Index, Name: s.Name, User: s.User, Slice: SliceName(s.Index),
		CPUs: s.CPUs, MemoryNodes: s.MemoryNodes, MemoryBytes: s.MemoryBytes,
		TimeLimitSeconds: limit, PidsLimit: b.cfg.Job.TasksMax, DiskBytes: s.DiskBytes, ShmBytes: cmp.Or(int64(b.cfg.Job.ShmSize), min(s.MemoryBytes/4, 8<<30)),
		Profile: b.cfg.Job.Profile, Network: b.cfg.Job.Network, Networks: b.cfg.Job.AllowedNetworks, Images: b.cfg.Job.AllowedImages,
		Repositories: b.cfg.Agent.AllowedRepositories,
		Vendor:       s.Vendor(), GPUs: []PolicyGPU{},
		Env:      slotEnv(s),
		WorkRoot: BuildsDir(s.Index), Binary: b.Binary, DockerSocket: b.cfg.Docker.Socket, Socket: SocketPath(s.Index),
		DeviceNodes: []string{},
		Registries:  registries(b.cfg), NodeImage: b.cfg.Image.Name,
	}
	if b.Runner != "" {
		pol.Runner = RunnerCopy
	}
	if b.cfg.Image.Updates() {
		pol.KeptImage = b.cfg.Image.Name
	}
	if b.cfg.Job.Prolog+b.cfg.Job.Epilog != "" {
		pol.Hooks = &Hooks{Prolog: b.cfg.Job.Prolog, Epilog: b.cfg.Job.Epilog, Node: b.Node}
		if pol.Hooks.LimitSeconds, err = b.cfg.Job.HookLimit(); err != nil {
			return JobPolicy{}, fmt.Errorf("job.hook_time_limit: %w", err)
		}
	}
	var names, cdi []string
	for _, g := range s.GPUs {
		pol.GPUs = append(pol.GPUs, PolicyGPU{UUID: g.UUID, PCI: g.PCI, Instance: g.Instance, Part: g.Part, Partition: g.Partition, Nodes: g.Devices})
		if g.Vendor == "nvidia" && g.Name() != "" && (g.Part == "" || g.Instance != "") {
			names = append(names, g.Name())
			cdi = append(cdi, cdiName(g))
		}
	}
	d := b.inv.Software.Docker
	unknown := func(name string) bool { return !slices.Contains(d.CDIDevices, name) }
	switch {
	case len(names) == 0 || len(names) < len(s.GPUs):
		pol.DeviceNodes = s.Devices()
	case d.CDI && !slices.ContainsFunc(cdi, unknown):
		pol.CDIDevices = cdi
	case slices.Contains(d.Runtimes, "nvidia"):
		pol.DeviceRequests, pol.DeviceNodes = names, s.Devices()
	default:
		pol.DeviceNodes = s.Devices()
	}
	return pol, nil
}

// registries returns the registries that the operator named in the list or in the
// image's name.
func registries(cfg config.Config) []string {
	list := slices.Clone(cfg.Job.PrivateRegistries)
	if host, _, ok := strings.Cut(cfg.Image.Name, "/"); ok && (host == "localhost" || strings.ContainsAny(host, ".:")) {
		list = append(list, host)
	}
	return list
}
