package installer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// Prerequisite is a program that a node needs from the distribution's packages.
//
// Both maps have an entry per package manager, for the distributions that differ also one per
// ID in os-release, and one per ID and major version. The most specific one counts.
type Prerequisite struct {
	packages map[string]string
	service  map[string]string // the unit to enable
}

// Everything that a node needs from packages. Cron is needed for image.auto_update only.
var (
	Docker = Prerequisite{
		// In Debian 13 the command line became a separate package.
		packages: map[string]string{"apt-get": "docker.io", "debian": "docker.io docker-cli", "debian 11": "docker.io", "debian 12": "docker.io", "dnf": "docker-ce", "amzn": "docker"},
		service:  map[string]string{"apt-get": "docker", "dnf": "docker"},
	}
	Git      = Prerequisite{packages: map[string]string{"apt-get": "git", "dnf": "git"}}
	MkfsExt4 = Prerequisite{packages: map[string]string{"apt-get": "e2fsprogs", "dnf": "e2fsprogs"}}
	Toolkit  = Prerequisite{packages: map[string]string{"apt-get": "nvidia-container-toolkit", "dnf": "nvidia-container-toolkit"}}
	Cron     = Prerequisite{
		packages: map[string]string{"apt-get": "cron", "dnf": "cronie"},
		service:  map[string]string{"apt-get": "cron", "dnf": "crond"},
	}
)

// GenerateCDI describes the NVIDIA GPUs to Docker.
const GenerateCDI = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

// Command returns the command for a root shell that installs and starts a prerequisite on a
// distribution.
func (p Prerequisite) Command(os inventory.OS) string {
	manager := "apt-get"
	if slices.Contains([]string{"rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"}, os.ID) {
		manager = "dnf"
	}
	var commands []string
	if manager == "apt-get" {
		commands = append(commands, "apt-get update")
	}
	commands = append(commands, manager+" install -y "+find(p.packages, os, manager))
	if unit := find(p.service, os, manager); unit != "" {
		commands = append(commands, "systemctl enable --now "+unit)
	}
	return strings.Join(commands, " && ")
}

// find returns the entry that counts on a distribution.
func find(entries map[string]string, os inventory.OS, manager string) string {
	major, _, _ := strings.Cut(os.VersionID, ".")
	return cmp.Or(entries[os.ID+" "+major], entries[os.ID], entries[manager])
}
