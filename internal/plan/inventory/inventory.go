// Package inventory describes what a machine has: GPUs, CPUs, memory and the
// software that kbnode builds on. Package detect reads it.
package inventory

import "github.com/gpu-mode/kbnode/internal/plan/nvml"

// Schema is the version of the JSON that Inventory marshals to. It rises when
// a field changes its meaning or is removed, not when one is added.
const Schema = 1

// Inventory is one machine as it was read. Fields that could not be read are
// empty or 0, and problems says why.
type Inventory struct {
	Schema   int        `json:"schema"`
	Hostname string     `json:"hostname"`
	Arch     string     `json:"arch"` // amd64 or arm64, "" if unknown
	Kernel   string     `json:"kernel"`
	OS       OS         `json:"os"`
	CPU      CPU        `json:"cpu"`
	Memory   Memory     `json:"memory"`
	NVIDIA   *NVIDIA    `json:"nvidia,omitempty"` // only with an NVIDIA GPU or driver
	AMD      *AMD       `json:"amd,omitempty"`    // only with an AMD GPU or driver
	GPUs     []GPU      `json:"gpus"`             // by PCI address, then partition
	Software Software   `json:"software"`
	Disks    []DiskFree `json:"disks,omitempty"`
	Tuning   Tuning     `json:"tuning,omitzero"`
	Problems []Problem  `json:"problems,omitempty"`
	// subjects of problems that could not be read completely. What is missing may
	// exist. The other subjects were read and are broken.
	Unread []string `json:"unread,omitempty"`
}

// Problem is a part of the machine that could not be read or is broken. The rest of
// the inventory is still good.
type Problem struct {
	Subject string `json:"subject"` // "gpu 0000:1a:00.0", "nvml", "docker", …
	Detail  string `json:"detail"`
}

// OS is the distribution, from os-release.
type OS struct {
	ID         string `json:"id"`         // debian, ubuntu, rhel, …
	VersionID  string `json:"version_id"` // "12", "24.04"
	PrettyName string `json:"pretty_name"`
	Virt       bool   `json:"virt"` // a virtual machine
}

// CPU is the processor topology. Only online CPUs are listed.
type CPU struct {
	Model   string       `json:"model"`
	Present string       `json:"present"`
	Online  string       `json:"online"`
	Allowed string       `json:"allowed"` // online, and in the root cgroup's effective cpuset
	List    []LogicalCPU `json:"list"`    // by ID
}

// LogicalCPU is one online hardware thread. IDs are -1 if unknown.
type LogicalCPU struct {
	ID       int   `json:"id"`
	Package  int   `json:"package"`
	Die      int   `json:"die"`
	L3       int   `json:"l3"`       // lowest CPU with the same level-3 cache
	Core     int   `json:"core"`     // lowest online SMT sibling
	Siblings []int `json:"siblings"` // online threads of the core, including itself
	Threads  int   `json:"threads"`  // threads of the core, including offline ones; 0 if unknown
	NUMANode int   `json:"numa_node"`
	Capacity int   `json:"capacity"` // cpu_capacity or a hybrid core class; 0 if unknown
	Allowed  bool  `json:"allowed"`
	// microarchitecture: implementer and part (0x41 0xd85) on Arm, core or atom on hybrid
	// x86; "" if unknown
	Kind string `json:"kind"`
}

// Memory is RAM in bytes and its NUMA nodes.
type Memory struct {
	TotalBytes int64      `json:"total_bytes"`
	Nodes      []NUMANode `json:"nodes"` // by ID; only node 0 without NUMA
}

// NUMANode is one memory node. A node without CPUs is memory such as a GPU's or CXL.
type NUMANode struct {
	ID             int    `json:"id"`
	CPUs           string `json:"cpus"` // online CPUs; "" for a memory-only node
	MemoryBytes    int64  `json:"memory_bytes"`
	HugepagesBytes int64  `json:"hugepages_bytes"` // reserved for huge pages, included in memory_bytes
	Distances      []int  `json:"distances"`       // to each node, in the order of nodes
	GPU            string `json:"gpu,omitempty"`   // PCI address, for the memory of a GPU
}

// GPU is a whole GPU, or a partition of one.
type GPU struct {
	Vendor      string `json:"vendor"` // "nvidia" or "amd"
	UUID        string `json:"uuid"`   // "GPU-…", on AMD with the unique_id in hex; "" if unreadable
	PCI         string `json:"pci"`    // dddd:bb:dd.f, lower case
	Index       int    `json:"index"`  // of the driver, for display only; -1 if unknown
	Model       string `json:"model"`  // as named by the driver: "NVIDIA B200"
	PCIID       string `json:"pci_id"` // vendor:device, four hex digits each
	MemoryBytes int64  `json:"memory_bytes"`
	NUMANode    int    `json:"numa_node"`    // of the PCI device; -1 if unknown
	MemoryNode  int    `json:"memory_node"`  // NUMA node of the GPU's memory (Grace, POWER9); -1 if none
	Minor       int    `json:"minor"`        // of /dev/nvidiaN; -1 if unknown
	RenderMinor int    `json:"render_minor"` // of /dev/dri/renderDN; -1 if unknown
	Arch        string `json:"arch"`         // "sm_100", "gfx942"; "" if unknown
	Healthy     bool   `json:"healthy"`      // the GPU answers; if not, see problems
	Error       string `json:"error,omitempty"`
	// the GPU exists, but could not be read completely, such as its MIG instances without
	// NVML. What is missing may exist.
	Unread bool `json:"unread,omitempty"`

	Serial          string `json:"serial,omitempty"`
	PersistenceMode string `json:"persistence_mode,omitempty"` // "on", "off"
	ECCMode         string `json:"ecc_mode,omitempty"`         // "on", "off"
	MIGMode         string `json:"mig_mode,omitempty"`         // "on", "off"; "" without MIG
	MIG             []MIG  `json:"mig,omitempty"`

	// PCI addresses of the GPUs that NVLink or xGMI connects directly, sorted; none with
	// NVSwitch, where all GPUs are equally near. Partitions of an AMD device have the links
	// of the device.
	Links []string `json:"links,omitempty"`

	ComputePartition string `json:"compute_partition,omitempty"` // AMD: SPX, DPX, TPX, QPX, CPX
	MemoryPartition  string `json:"memory_partition,omitempty"`  // AMD: NPS1, NPS2, NPS4, NPS8
	Partition        int    `json:"partition,omitempty"`         // AMD: number within the device
	PerformanceLevel string `json:"performance_level,omitempty"` // AMD clock policy: "auto", "high"

	PowerLimitMilliwatts int64  `json:"power_limit_mw,omitempty"`
	MaxSMClockMHz        int64  `json:"max_sm_clock_mhz,omitempty"`
	ComputeMode          string `json:"compute_mode,omitempty"`
	Processes            int    `json:"processes,omitempty"` // compute processes
	MemoryUsedBytes      int64  `json:"memory_used_bytes,omitempty"`

	NVML *nvml.GPU `json:"nvml,omitempty"` // everything that NVML reported
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
	MemorySlices    int    `json:"memory_slices"` // of the GPU that it has; 0 if unknown
	Start           int    `json:"start"`         // first memory slice; with the slices, identifies the instance forever; -1 if unknown
	GPUCap          int    `json:"gpu_cap"`       // of the GPU instance, in /dev/nvidia-caps/nvidia-capN; -1 if unknown
	ComputeCap      int    `json:"compute_cap"`   // of the compute instance; -1 if unknown
}

// NVIDIA is the NVIDIA driver.
type NVIDIA struct {
	Source        string `json:"source"`         // where the GPUs were read: "nvml", "proc" or "pci"
	DriverVersion string `json:"driver_version"` // of the loaded module
	CUDAVersion   string `json:"cuda_version"`   // "13.0"; "" without NVML
	NVMLVersion   string `json:"nvml_version"`
	UVMMajor      int    `json:"uvm_major"`            // in /proc/devices; 0 if not loaded
	CapsMajor     int    `json:"caps_major"`           // in /proc/devices; 0 if not loaded
	NVMLError     string `json:"nvml_error,omitempty"` // why NVML did not answer
	NVMLCode      int    `json:"nvml_code,omitempty"`  // error code of nvml.h: 9 driver not loaded, 18 version of the loaded module differs; NVMLNotAsked
}

// NVMLNotAsked is the NVMLCode of a machine whose probe does not run, unlike one that took too long.
const NVMLNotAsked = -1

// AMD is the amdgpu driver.
type AMD struct {
	DriverVersion string `json:"driver_version"` // "" for the kernel's own driver
	KFD           bool   `json:"kfd"`            // /sys/class/kfd exists
}

// Software is what kbnode needs. An absent program has the version or path "".
type Software struct {
	Systemd  string `json:"systemd"` // "257"
	CgroupV2 bool   `json:"cgroup_v2"`
	Docker   Docker `json:"docker"`
	Agent    Agent  `json:"agent"`
	Toolkit  string `json:"container_toolkit,omitempty"` // path of nvidia-ctk
	Git      string `json:"git,omitempty"`               // path
	MkfsExt4 string `json:"mkfs_ext4,omitempty"`         // path
	Cron     bool   `json:"cron"`                        // /etc/cron.d exists
}

// Docker is the engine, from its API.
type Docker struct {
	Version       string   `json:"version"` // "" without an answer
	APIVersion    string   `json:"api_version"`
	CgroupDriver  string   `json:"cgroup_driver"`  // "systemd" or "cgroupfs"
	CgroupVersion string   `json:"cgroup_version"` // "2"
	StorageDriver string   `json:"storage_driver"`
	RootDir       string   `json:"root_dir"`
	ContainerdDir string   `json:"containerd_dir,omitempty"` // where containerd keeps images; "" if they are below RootDir
	CDI           bool     `json:"cdi"`                      // the engine supports CDI
	CDIDirs       []string `json:"cdi_dirs"`
	CDIDevices    []string `json:"cdi_devices,omitempty"` // from the engine's info, else from the spec files
	// what is wrong with specifications of NVIDIA's devices, by device
	CDIFaults      map[string]CDIFault `json:"cdi_faults,omitempty"`
	Runtimes       []string            `json:"runtimes"`
	DefaultRuntime string              `json:"default_runtime"`
}

// DefaultCDIDirs returns where an engine looks for specifications; later directories take
// precedence.
func DefaultCDIDirs() []string { return []string{"/etc/cdi", "/var/run/cdi"} }

// MaxCDISpecs bounds how many files of one of these directories kbnode reads.
const MaxCDISpecs = 64

// CDIFault is why CUDA does not start in a container that gets a device from a specification.
type CDIFault struct {
	Spec   string `json:"spec"` // path of the specification that counts; "" if two hide each other
	Detail string `json:"detail"`
	Node   bool   `json:"node,omitempty"` // the machine's own device node is wrong, too
}

// Agent is the installed buildkite-agent.
type Agent struct {
	Path    string   `json:"path"`
	Version string   `json:"version"`        // "3.76.2"
	Keys    []string `json:"keys,omitempty"` // configuration keys in `start --help`, sorted
}

// DiskFree is a file system that jobs write to.
type DiskFree struct {
	Path       string `json:"path"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
}

// Tuning is the kernel settings that affect timings or other slots.
type Tuning struct {
	Files     []TuningFile `json:"files,omitempty"`     // by path
	Governors []Governor   `json:"governors,omitempty"` // by cpufreq policy
}

// TuningFile is a setting of the whole machine.
type TuningFile struct {
	Path  string `json:"path"`
	Value string `json:"value"` // as in the file; "" if unreadable
}

// Governor is a cpufreq policy.
type Governor struct {
	Path  string   `json:"path"` // of its file
	CPUs  string   `json:"cpus"`
	Value string   `json:"value"` // "performance", "powersave", …
	Known []string `json:"known"` // values that the driver offers; none if unreadable
}
