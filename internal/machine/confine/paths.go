package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Docker's own masked and read-only paths, from all its versions, which a custom list replaces,
// and what else root in a container would have of the node's one /proc. Docker's runtime skips
// what a kernel lacks.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",

		"/proc/bus/pci", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmcore",
	}
	// What NVIDIA's container toolkit mounts into every container (discover.NewIPCDiscoverer in its internal/discover/ipc.go). Everyone
	// may connect, and the daemons ask no one who he is: they would end the persistence mode of any GPU, take its memory off line, or
	// take GPUs from the NVSwitches. A mount that is read-only does not prevent it. The directory is the node's, and open to all slots.
	services = []string{
		"/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket",
		"/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps",
	}
	readonlyPaths = []string{
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",

		"/proc/cpu", "/proc/driver", "/proc/dynamic_debug", "/proc/mtrr", "/proc/pressure", "/proc/slabinfo", "/proc/tty",
	}
)

// Masked returns what to mask in every container.
func Masked() []string { return slices.Concat(maskedPaths, services) }

// Paths returns what to mask and what to make read-only in a container without a profile, on the
// machine whose /proc and /sys these are.
func Paths(proc, sys string) (masked, readonly []string, err error) {
	throttle, err := filepath.Glob(sys + "/devices/system/cpu/cpu[0-9]*/thermal_throttle")
	windows, err2 := Windows(sys)
	readonly, err3 := nodeFiles(proc)
	return slices.Concat(Masked(), throttle, windows), append(readonly, readonlyPaths...), errors.Join(err, err2, err3)
}

// nodeFiles lists what /proc has beside processes and links. All mounts of it share these entries: root in one
// container could change their owners and modes for the whole node.
func nodeFiles(proc string) (list []string, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list files of the kernel: %w", err)
	}
	for _, e := range entries {
		path := "/proc/" + e.Name()
		if digit := e.Name()[0]; (digit < '0' || digit > '9') && e.Type()&os.ModeSymlink == 0 && !slices.Contains(maskedPaths, path) && !slices.Contains(readonlyPaths, path) {
			list = append(list, path)
		}
	}
	return list, nil
}

// Windows returns the files through which root reaches the memory, registers and configuration
// of all PCI devices below sys that have memory of their own.
func Windows(sys string) ([]string, error) {
	bus := sys + "/bus/pci/devices"
	links, err := os.ReadDir(bus)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var list []string
	for _, link := range links {
		dir, evalErr := filepath.EvalSymlinks(filepath.Join(bus, link.Name()))
		entries, readErr := os.ReadDir(dir)
		if joined := errors.Join(evalErr, readErr); joined != nil {
			if !errors.Is(joined, os.ErrNotExist) { // a device that was removed meanwhile
				err = errors.Join(err, joined)
			}
			continue
		}
		var files []string
		memory := false
		for _, e := range entries {
			bar := strings.HasPrefix(e.Name(), "resource") && e.Name() != "resource"
			memory = memory || bar
			if bar || slices.Contains([]string{"config", "rom", "vpd", "resource", "legacy_io", "legacy_mem"}, e.Name()) {
				files = append(files, filepath.Join(dir, e.Name()))
			}
			if e.Name() == "p2pmem" {
				files = append(files, filepath.Join(dir, e.Name(), "allocate"))
			}
		}
		if memory {
			list = append(list, files...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list PCI devices: %w", err)
	}
	return list, nil
}
