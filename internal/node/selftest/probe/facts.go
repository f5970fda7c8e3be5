package probe

import (
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// widest asks for all CPUs and returns the ones it got.
func widest() string {
	var set unix.CPUSet
	for i := range 1024 {
		set.Set(i)
	}
	_ = unix.SchedSetaffinity(0, &set)
	set.Zero() // the kernel writes only as much as it has CPUs
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return result(err)
	}
	var cpus []int
	for i := range 1024 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpuset.Of(cpus...).String()
}

func interfaces() []string {
	list := []string{}
	all, err := net.Interfaces()
	if err != nil {
		return append(list, result(err))
	}
	for _, i := range all {
		// Kernel modules make tunl0 and the like appear everywhere, but down.
		if i.Flags&net.FlagUp != 0 {
			list = append(list, i.Name)
		}
	}
	return list
}

// address returns the one at which others reach this machine or container, "" without a network.
func address() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// nodes returns the device files of GPUs and disks that a container sees.
func nodes() []string {
	list := []string{}
	for _, dir := range []string{"/dev", "/dev/dri"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			name := dir + "/" + e.Name()
			info, err := os.Stat(name)
			if err != nil || info.Mode()&os.ModeDevice == 0 {
				continue
			}
			gpu := dir == "/dev/dri" || strings.HasPrefix(e.Name(), "nvidia") || e.Name() == "kfd"
			if gpu || info.Mode()&os.ModeCharDevice == 0 {
				list = append(list, name)
			}
		}
	}
	return list
}

// compute reads the compute driver's topology as ROCm does. A GPU that the device filter of
// the process's cgroup denies has neither an ID nor properties (EPERM).
func compute(dir string) (renders []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		id, err := os.ReadFile(dir + "/" + e.Name() + "/gpu_id")
		if err != nil || strings.TrimSpace(string(id)) == "0" {
			continue // a CPU
		}
		properties, err := os.ReadFile(dir + "/" + e.Name() + "/properties")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(properties)) {
			if minor, ok := strings.CutPrefix(strings.TrimSpace(line), "drm_render_minor "); ok {
				renders = append(renders, "/dev/dri/renderD"+minor)
			}
		}
	}
	return renders
}

func environment() []string {
	names := []string{}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func processes() int {
	entries, _ := os.ReadDir("/proc")
	n := 0
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") == "" {
			n++
		}
	}
	return n
}

func status(names ...string) map[string]string {
	lines := map[string]string{}
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && slices.Contains(names, name) {
			lines[name] = strings.TrimSpace(value)
		}
	}
	return lines
}

func cgroup() map[string]string {
	files := map[string]string{}
	for _, name := range []string{"memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpuset.cpus.effective", "cpuset.mems.effective"} {
		if text, err := os.ReadFile("/sys/fs/cgroup/" + name); err == nil {
			files[name] = strings.TrimSpace(string(text))
		}
	}
	return files
}
