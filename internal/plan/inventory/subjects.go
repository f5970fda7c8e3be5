package inventory

import (
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// Subjects of problems with facts that a plan uses. The subject of a single GPU is
// GPUSubject.
const (
	SubjectCPU    = "cpu"    // topology, caches, and which CPUs are online and allowed
	SubjectMemory = "memory" // RAM, NUMA nodes and huge pages
	SubjectGPUs   = "gpus"   // which GPUs there are
	SubjectNVML   = "nvml"
	SubjectDriver = "driver" // which one is loaded
	SubjectAgent  = "buildkite-agent"
	SubjectDocker = "docker"
	SubjectCDI    = "cdi" // Docker's: whether it supports CDI, and the devices
	SubjectHost   = "hostname"
	SubjectSystem = "systemd"
	SubjectFiles  = "installed software" // programs, directories and cgroup v2
	SubjectTuning = "tuning"
)

// SubjectCDIFile is of a CDI specification that is wrong. The engine skips it, too, so all is read and the
// plan is made without its devices.
const SubjectCDIFile = "cdi specification"

// GPUSubject returns the subject of problems with the GPU at a PCI address.
func GPUSubject(pci string) string { return "gpu " + pci }

// DiskSubject returns the subject of problems with the file system at a path.
func DiskSubject(path string) string { return "disk " + path }

// WhyUnread returns why a subject, or part of it, could not be read; "" if it was read or
// does not exist.
func (inv *Inventory) WhyUnread(subject string) string {
	for _, p := range inv.Problems {
		if p.Subject == subject && slices.Contains(inv.Unread, subject) {
			return p.Detail
		}
	}
	return ""
}

// PartsUnread reports whether it is unknown, at least in part, how a GPU that answers is
// divided.
func (g *GPU) PartsUnread() bool {
	switch {
	case !g.Healthy:
		return false
	case g.Unread || g.NVML == nil:
		return g.Unread
	}
	return slices.ContainsFunc(g.NVML.Unread, func(query string) bool {
		return strings.Contains(query, "Mig") || strings.Contains(query, "GpuInstance")
	}) || slices.ContainsFunc(g.NVML.MIG, func(m nvml.MIG) bool { return m.Error != "" || !ValidUUID(m.UUID) })
}
