// Package nvml is what the probe kbnode-nvml and kbnode say to each other: reports and
// samples of GPUs, and the settings to change.
package nvml

// Schema is the version of the JSON that the probe prints. It rises when a field that kbnode
// reads changes its meaning.
const Schema = 1

// Return codes of nvml.h.
const (
	CodeNoDriver  = 9  // NVML_ERROR_DRIVER_NOT_LOADED
	CodeNoLibrary = 12 // NVML_ERROR_LIBRARY_NOT_FOUND
	CodeLost      = 15 // NVML_ERROR_GPU_IS_LOST
	CodeReset     = 16 // NVML_ERROR_RESET_REQUIRED
	CodeMismatch  = 18 // NVML_ERROR_LIB_RM_VERSION_MISMATCH
)

// Report is what NVML reports about a machine. A value that the driver does not report for
// a GPU is absent (nil, "" or an empty list), never zero.
type Report struct {
	Schema int    `json:"schema"`
	OK     bool   `json:"ok"`               // NVML was initialized; GPUs may still have failed
	Error  string `json:"error,omitempty"`  // why not OK
	Code   int    `json:"code,omitempty"`   // NVML's return code for Error, from nvml.h
	Absent bool   `json:"absent,omitempty"` // there is no libnvidia-ml.so.1 on this machine
	Driver string `json:"driver,omitempty"` // "580.95.05"
	NVML   string `json:"nvml,omitempty"`   // version of the library
	CUDA   string `json:"cuda,omitempty"`   // newest CUDA that the driver supports: "13.0"
	GPUs   []GPU  `json:"gpus"`             // those that answer, by NVML index
	Hung   []Hung `json:"hung,omitempty"`   // those for which the driver does not answer, likewise
	Count  int    `json:"count,omitempty"`  // of all GPUs, if a Line follows about each; else 0
}

// Untold is the Error of a GPU whose use was asked for, if NVML answers that it does not tell its processes.
const Untold = "NVML does not tell its processes"

// GPU is one physical GPU. Error is set if it does not answer; fields that were read before
// that are kept.
type GPU struct {
	Index int    `json:"index"` // NVML's; not an identity, because it may change at every boot
	Error string `json:"error,omitempty"`
	Code  int    `json:"code,omitempty"` // NVML's return code for Error; 15 is lost, 16 needs a reset

	UUID       string `json:"uuid,omitempty"`
	PCI        string `json:"pci,omitempty"`    // dddd:bb:dd.f, lower case
	PCIID      string `json:"pci_id,omitempty"` // vendor:device, four hex digits each
	Name       string `json:"name,omitempty"`
	Serial     string `json:"serial,omitempty"`
	Minor      *int   `json:"minor,omitempty"`       // /dev/nvidia<minor>
	MemoryNode *int   `json:"memory_node,omitempty"` // NUMA node of the GPU's memory (Grace), not of its CPUs

	Compute string `json:"compute_capability,omitempty"` // "9.0"

	Memory      *Memory `json:"memory,omitempty"`
	Persistence string  `json:"persistence,omitempty"` // "on", "off"
	ComputeMode string  `json:"compute_mode,omitempty"`
	MIGMode     *Mode   `json:"mig_mode,omitempty"`
	MIG         []MIG   `json:"mig,omitempty"`

	ECCMode      *Mode     `json:"ecc_mode,omitempty"`
	ECC          *ECC      `json:"ecc,omitempty"`
	RemappedRows *Remapped `json:"remapped_rows,omitempty"`
	// RecoveryAction is the action that the driver wants: 0 nothing, 1 reset, 2 reboot, 3
	// drain P2P, 4 drain and reset (NVML_GPU_RECOVERY_ACTION_*).
	RecoveryAction *int64 `json:"recovery_action,omitempty"`

	Clocks *Clocks `json:"clocks,omitempty"`
	// ClockReasons is why the clocks are not higher, as a bit set (nvmlClocksEventReason*):
	// 0x4 power cap, 0x8 hardware slowdown, 0x20 and 0x40 heat, 0x80 power brake.
	ClockReasons *uint64 `json:"clock_reasons,omitempty"`
	Power        *Power  `json:"power,omitempty"`
	Busy         *uint32 `json:"busy_percent,omitempty"`
	// EnergyMillijoules is the GPU's consumption since the driver started it. It falls when
	// the GPU is reset, and without persistence whenever no one uses the GPU.
	EnergyMillijoules *uint64      `json:"energy_mj,omitempty"`
	Temperature       *Temperature `json:"temperature,omitempty"`
	PCIe              *PCIe        `json:"pcie,omitempty"`
	Fabric            *Fabric      `json:"fabric,omitempty"`
	NVLinks           *int64       `json:"nvlinks,omitempty"`        // total
	NVLinksUp         *int         `json:"nvlinks_active,omitempty"` // up
	// NVLinkGPUs are the PCI addresses of the GPUs at the other ends of active links,
	// without duplicates, sorted; empty with an NVSwitch.
	NVLinkGPUs []string `json:"nvlink_gpus,omitempty"`

	Processes []Process `json:"processes,omitempty"`          // that compute on it
	Unlisted  bool      `json:"processes_unlisted,omitempty"` // NVML does not tell Processes
	Graphics  []Process `json:"graphics_processes,omitempty"` // that draw on it; only if this GPU alone was asked for
	// Unread names the queries that failed in a way that a healthy GPU does not:
	// "nvmlDeviceGetEccMode: Unknown Error".
	Unread []string `json:"unread,omitempty"`
}

// Mode is a switch that takes effect at the next reset or reboot: "on" or "off".
type Mode struct {
	Current string `json:"current"`
	Pending string `json:"pending"`
}

// Memory is device memory in bytes. What driver and firmware reserve is not part of Used,
// except with drivers that do not distinguish them.
type Memory struct {
	TotalBytes uint64 `json:"total_bytes"`
	UsedBytes  uint64 `json:"used_bytes"`
}

// MIG is one MIG device. Its UUID changes when the instance is created again; Start, Size
// and Profile of the parent do not.
type MIG struct {
	UUID            string `json:"uuid"`
	Name            string `json:"name,omitempty"`
	GPUInstance     int    `json:"gpu_instance"`
	ComputeInstance int    `json:"compute_instance"`
	Profile         *int   `json:"profile,omitempty"` // of the GPU instance
	Start           *int   `json:"start,omitempty"`   // first memory slice
	Size            *int   `json:"size,omitempty"`    // memory slices
	Slices          int    `json:"slices,omitempty"`  // compute slices of the GPU instance
	ComputeSlices   int    `json:"compute_slices,omitempty"`
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	MemoryBytes     int64  `json:"memory_bytes,omitempty"`
	Error           string `json:"error,omitempty"`
}

// ECC counts memory errors since the driver was loaded.
type ECC struct {
	VolatileUncorrected *uint64 `json:"volatile_uncorrected,omitempty"`
	SRAMThreshold       *bool   `json:"sram_threshold_exceeded,omitempty"`
}

// Remapped is the state of row remapping (Ampere and newer). Pending needs a reset; Failed
// means that the board must be replaced.
type Remapped struct {
	Uncorrectable int    `json:"uncorrectable"`
	Pending       bool   `json:"pending"`
	Failed        bool   `json:"failed"`
	Banks         *Banks `json:"banks,omitempty"`
}

// Banks counts memory banks without spare rows.
type Banks struct {
	None uint32 `json:"none"`
}

// Clocks are in MHz.
type Clocks struct {
	SM     *uint32 `json:"sm,omitempty"`
	MaxSM  *uint32 `json:"max_sm,omitempty"`
	Memory *uint32 `json:"memory,omitempty"`
}

// Power is in milliwatts.
type Power struct {
	Limit    *uint32 `json:"limit,omitempty"`
	Enforced *uint32 `json:"enforced,omitempty"`
	Default  *uint32 `json:"default,omitempty"`
	Usage    *uint32 `json:"usage,omitempty"`
}

// Temperature is in degrees Celsius; Margin is the distance to slowing down.
type Temperature struct {
	GPU    *uint32 `json:"gpu,omitempty"`
	Margin *int32  `json:"margin,omitempty"`
}

// PCIe is the link of the GPU: generation, lanes and replayed packets.
type PCIe struct {
	Gen      *int `json:"gen,omitempty"`
	MaxGen   *int `json:"max_gen,omitempty"`
	Width    *int `json:"width,omitempty"`
	MaxWidth *int `json:"max_width,omitempty"`
	Replays  *int `json:"replays,omitempty"`
}

// Fabric is the GPU's registration with the NVSwitch fabric.
type Fabric struct {
	State  string `json:"state"`            // "not supported", "not started", "in progress", "completed"
	Status int    `json:"status,omitempty"` // NVML return code, meaningful when completed
}

// Process is one process on a GPU, by its PID on the host.
type Process struct {
	PID       uint32 `json:"pid"`
	UsedBytes uint64 `json:"used_bytes,omitempty"` // 0 if the driver does not report it
}
