// Package inventory reads what a machine has: GPUs, CPUs, memory and the
// software that kbnode builds on. It reports facts and decides nothing.
package inventory

import "github.com/gpu-mode/kbnode/internal/inventory/probe"

// Schema is the version of the JSON that Inventory marshals to. It rises when
// a field changes its meaning or goes away, not when one is added.
const Schema = 1

// Inventory is one machine as it was read. Fields that could not be read stay
// at their zero value, and Problems says why.
type Inventory struct {
	Schema   int        `json:"schema"`
	Hostname string     `json:"hostname"`
	Arch     string     `json:"arch"` // as in GOARCH: amd64, arm64; of the machine read, "" if unknown
	Kernel   string     `json:"kernel"`
	OS       OS         `json:"os"`
	CPU      CPU        `json:"cpu"`
	Memory   Memory     `json:"memory"`
	NVIDIA   *NVIDIA    `json:"nvidia,omitempty"` // nil without any NVIDIA GPU or driver
	AMD      *AMD       `json:"amd,omitempty"`    // nil without any AMD GPU or driver
	GPUs     []GPU      `json:"gpus"`             // by PCI address, then partition
	Software Software   `json:"software"`
	Disks    []DiskFree `json:"disks,omitempty"`
	Tuning   Tuning     `json:"tuning,omitzero"`
	Problems []Problem  `json:"problems,omitempty"`
	// Unread are the subjects of Problems that could not be read, or not all of them:
	// what is missing here may be there. The others were read and are broken.
	Unread []string `json:"unread,omitempty"`
}

// Problem is a part of the machine that could not be read, or was read as
// broken; everything else in the Inventory is still good.
type Problem struct {
	Subject string `json:"subject"` // "gpu 0000:1a:00.0", "nvml", "docker", …
	Detail  string `json:"detail"`
}

// OS is the distribution, from os-release.
type OS struct {
	ID         string `json:"id"`         // debian, ubuntu, rhel, …
	VersionID  string `json:"version_id"` // "12", "24.04"
	PrettyName string `json:"pretty_name"`
	Virt       bool   `json:"virt"` // a hypervisor flag is set
}

// CPU is the processor topology. Only CPUs that are online are in List.
type CPU struct {
	Model   string       `json:"model"`
	Present string       `json:"present"` // Linux list format
	Online  string       `json:"online"`  // Linux list format
	Allowed string       `json:"allowed"` // online ∩ the root cgroup's effective cpuset, Linux list format
	List    []LogicalCPU `json:"list"`    // by ID
}

// LogicalCPU is one online hardware thread and where it sits. IDs are -1 where
// the kernel does not tell.
type LogicalCPU struct {
	ID       int   `json:"id"`
	Package  int   `json:"package"`
	Die      int   `json:"die"`
	L3       int   `json:"l3"`       // lowest CPU that shares the level-3 cache
	Core     int   `json:"core"`     // lowest online SMT sibling
	Siblings []int `json:"siblings"` // online threads of the core, itself included
	Threads  int   `json:"threads"`  // threads of the core that the machine has, offline ones included; 0 if unknown
	NUMANode int   `json:"numa_node"`
	Capacity int   `json:"capacity"` // cpu_capacity or a hybrid core class; 0 if the kernel does not tell
	Allowed  bool  `json:"allowed"`
	// Kind is its microarchitecture, as implementer and part (0x41 0xd85) on Arm and as core or
	// atom on hybrid x86; "" if the kernel does not tell.
	Kind string `json:"kind"`
}

// Memory is RAM in bytes and its NUMA nodes.
type Memory struct {
	TotalBytes int64      `json:"total_bytes"`
	Nodes      []NUMANode `json:"nodes"` // by ID; one made-up node 0 on a machine without NUMA
}

// NUMANode is one memory node. A node without CPUs is GPU memory, CXL memory
// or the like.
type NUMANode struct {
	ID             int    `json:"id"`
	CPUs           string `json:"cpus"` // online CPUs, Linux list format; "" for a memory-only node
	MemoryBytes    int64  `json:"memory_bytes"`
	HugepagesBytes int64  `json:"hugepages_bytes"` // reserved for huge pages, part of MemoryBytes
	Distances      []int  `json:"distances"`       // to the nodes in the order of Memory.Nodes
	GPU            string `json:"gpu,omitempty"`   // PCI address of the GPU whose memory it is
}

// GPU is one thing that can become a slot: a whole GPU, or a partition of one.
type GPU struct {
	Vendor      string `json:"vendor"` // "nvidia" or "amd"
	UUID        string `json:"uuid"`   // NVIDIA "GPU-…"; AMD "GPU-<unique_id hex>"; "" if it could not be read
	PCI         string `json:"pci"`    // dddd:bb:dd.f, lower case
	Index       int    `json:"index"`  // the driver's index, for display only; -1 if unknown
	Model       string `json:"model"`  // as the driver says: "NVIDIA B200"
	PCIID       string `json:"pci_id"` // vendor:device, four hex digits each
	MemoryBytes int64  `json:"memory_bytes"`
	NUMANode    int    `json:"numa_node"`    // of the PCI device, from sysfs; -1 if the firmware does not tell
	MemoryNode  int    `json:"memory_node"`  // the NUMA node that is this GPU's memory (Grace, POWER9); -1 if none
	Minor       int    `json:"minor"`        // NVIDIA: /dev/nvidia<minor>; -1 if unknown
	RenderMinor int    `json:"render_minor"` // /dev/dri/renderD<n>; -1 if unknown
	Arch        string `json:"arch"`         // "sm_100", "gfx942"; "" if unknown
	Healthy     bool   `json:"healthy"`      // answers; see Problem for why not
	Error       string `json:"error,omitempty"`
	// Unread says that it is there and something of it could not be read, such as how
	// it is divided while NVML is silent: what is missing here may be there.
	Unread bool `json:"unread,omitempty"`

	Serial          string `json:"serial,omitempty"`
	PersistenceMode string `json:"persistence_mode,omitempty"` // "on", "off"
	ECCMode         string `json:"ecc_mode,omitempty"`         // "on", "off"
	MIGMode         string `json:"mig_mode,omitempty"`         // "on", "off"; "" where there is no MIG
	MIG             []MIG  `json:"mig,omitempty"`

	// Links are the PCI addresses of the other GPUs of this machine that it reaches
	// directly, by NVLink or xGMI, sorted. There are none through NVSwitch, where all
	// GPUs are equally near. Partitions of one AMD device have those of the device.
	Links []string `json:"links,omitempty"`

	ComputePartition string `json:"compute_partition,omitempty"` // AMD: SPX, DPX, TPX, QPX, CPX
	MemoryPartition  string `json:"memory_partition,omitempty"`  // AMD: NPS1, NPS2, NPS4, NPS8
	Partition        int    `json:"partition,omitempty"`         // AMD: number within the PCI device
	PerformanceLevel string `json:"performance_level,omitempty"` // AMD: how the driver chooses clocks: "auto", "high"

	PowerLimitMilliwatts int64  `json:"power_limit_mw,omitempty"`
	MaxSMClockMHz        int64  `json:"max_sm_clock_mhz,omitempty"`
	ComputeMode          string `json:"compute_mode,omitempty"`
	Processes            int    `json:"processes,omitempty"` // compute processes seen
	MemoryUsedBytes      int64  `json:"memory_used_bytes,omitempty"`

	NVML *probe.GPU `json:"nvml,omitempty"` // NVIDIA: all that NVML said; nil without it
}

// MIG is one MIG instance of a GPU.
type MIG struct {
	UUID            string `json:"uuid"`
	Name            string `json:"name"`
	Profile         string `json:"profile"` // "1g.23gb", "1g.10gb+me", "1c.3g.40gb"; "" if unknown
	GPUInstance     int    `json:"gpu_instance"`
	ComputeInstance int    `json:"compute_instance"`
	MemoryBytes     int64  `json:"memory_bytes"`
	Slices          int    `json:"slices"`
	MemorySlices    int    `json:"memory_slices"` // of the parent, 0 if unknown
	Start           int    `json:"start"`         // first memory slice, -1 if unknown; with the slices it names the instance for good
	GPUCap          int    `json:"gpu_cap"`       // of the GPU instance: /dev/nvidia-caps/nvidia-cap<GPUCap>; -1 if unknown
	ComputeCap      int    `json:"compute_cap"`   // of the compute instance: /dev/nvidia-caps/nvidia-cap<ComputeCap>; -1 if unknown
}

// NVIDIA is what the NVIDIA driver says of itself.
type NVIDIA struct {
	Source        string `json:"source"`         // "nvml", "proc" or "pci": where the GPUs were read
	DriverVersion string `json:"driver_version"` // of the loaded module
	CUDAVersion   string `json:"cuda_version"`   // "13.0"; "" without NVML
	NVMLVersion   string `json:"nvml_version"`
	UVMMajor      int    `json:"uvm_major"`            // /proc/devices; 0 if not loaded
	CapsMajor     int    `json:"caps_major"`           // /proc/devices; 0 if not loaded
	NVMLError     string `json:"nvml_error,omitempty"` // why NVML did not answer; "" if it did
	NVMLCode      int    `json:"nvml_code,omitempty"`  // of nvml.h, where NVML itself refused: 9 driver not loaded, 18 the loaded module is another version's
}

// AMD is what the amdgpu driver says of itself.
type AMD struct {
	DriverVersion string `json:"driver_version"` // "" for the driver of the kernel itself
	KFD           bool   `json:"kfd"`            // /sys/class/kfd exists
}

// Software is what kbnode builds on. A version is "" where the thing is absent.
type Software struct {
	Systemd  string `json:"systemd"` // "257"
	CgroupV2 bool   `json:"cgroup_v2"`
	Docker   Docker `json:"docker"`
	Agent    Agent  `json:"agent"`
	Toolkit  string `json:"container_toolkit,omitempty"` // nvidia-ctk's path, "" if absent
	Git      string `json:"git,omitempty"`               // path, "" if absent
	MkfsExt4 string `json:"mkfs_ext4,omitempty"`         // path, "" if absent
	Cron     bool   `json:"cron"`                        // /etc/cron.d exists
}

// Docker is the engine as its API describes it.
type Docker struct {
	Version        string   `json:"version"` // "" if it does not answer
	APIVersion     string   `json:"api_version"`
	CgroupDriver   string   `json:"cgroup_driver"`  // "systemd" or "cgroupfs"
	CgroupVersion  string   `json:"cgroup_version"` // "2"
	StorageDriver  string   `json:"storage_driver"`
	RootDir        string   `json:"root_dir"`
	CDI            bool     `json:"cdi"` // CDI devices can be asked for
	CDIDirs        []string `json:"cdi_dirs"`
	CDIDevices     []string `json:"cdi_devices,omitempty"` // names found: in the engine's info, else in the spec files
	Runtimes       []string `json:"runtimes"`
	DefaultRuntime string   `json:"default_runtime"`
}

// Agent is the installed buildkite-agent.
type Agent struct {
	Path    string   `json:"path"`
	Version string   `json:"version"`        // "3.76.2"
	Keys    []string `json:"keys,omitempty"` // configuration keys that `start --help` lists, sorted
}

// DiskFree is the room on a file system that jobs write to.
type DiskFree struct {
	Path       string `json:"path"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
}

// Tuning is what the running kernel lets be set, as far as timings or other slots
// depend on it.
type Tuning struct {
	Files     []TuningFile `json:"files,omitempty"`     // by path
	Governors []Governor   `json:"governors,omitempty"` // by cpufreq policy
}

// TuningFile is one setting, for the whole machine.
type TuningFile struct {
	Path  string `json:"path"`
	Value string `json:"value"` // as the file has it; "" if it could not be read
}

// Governor chooses the frequency of some CPUs.
type Governor struct {
	Path  string   `json:"path"`  // of the file that names it
	CPUs  string   `json:"cpus"`  // Linux list format
	Value string   `json:"value"` // "performance", "powersave", …
	Known []string `json:"known"` // those that the driver has; none if they could not be read
}
