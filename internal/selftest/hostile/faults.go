package hostile

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Faults lists, as sentences, where a container has more than its slot's policy gives. c
// and h are what the engine was asked to create, or what it reports of an existing
// container.
func Faults(p plan.JobPolicy, c *container.Config, h *container.HostConfig) []string {
	var found []string
	not := func(bad bool, format string, args ...any) {
		if bad {
			found = append(found, fmt.Sprintf(format, args...))
		}
	}
	strict := p.Profile == config.ProfileStrict

	not(h.Privileged, "it is privileged")
	not(len(h.CapAdd) > 0, "capabilities are added: %s", h.CapAdd)
	for _, name := range []string{"AUDIT_WRITE", "MKNOD", "NET_RAW"} {
		not(!dropped(h.CapDrop, name) || strict && !dropped(h.CapDrop, "ALL"), "capabilities are kept: only %s are dropped", h.CapDrop)
	}
	not(!slices.ContainsFunc(h.SecurityOpt, func(o string) bool {
		return o == "no-new-privileges" || o == "no-new-privileges=true" || o == "no-new-privileges:true"
	}), "it may gain privileges")
	profile := slices.ContainsFunc(h.SecurityOpt, isJobProfile)
	not(slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return !strings.HasPrefix(o, "no-new-privileges") && !isJobProfile(o) }), "security options are %s", h.SecurityOpt)
	not(h.MaskedPaths != nil && len(h.MaskedPaths) == 0 || !profile && !slices.Contains(h.MaskedPaths, "/proc/bus/pci"), "files of devices in /sys and /proc are not masked")
	not(h.ReadonlyPaths != nil && len(h.ReadonlyPaths) == 0 || !profile && !slices.Contains(h.ReadonlyPaths, "/proc/driver"), "settings of drivers in /proc are writable")
	not(len(h.Sysctls) > 0, "kernel parameters are set: %v", h.Sysctls)
	not(strict && !h.ReadonlyRootfs, "its root is writable")
	not(strict && (c.User == "" || c.User == "root" || c.User == "0" || strings.HasPrefix(c.User, "0:")), "it runs as root")
	not(c.User == "1" || strings.HasPrefix(c.User, "kbnode-gpu") && c.User != plan.UserName(p.Slot), "it runs as the account %q", c.User)
	not(slices.Contains(h.GroupAdd, "4") || slices.Contains(h.GroupAdd, "5"), "it has groups of system accounts: %s", h.GroupAdd)

	not(h.PidMode != "", "its processes are those of %s", h.PidMode)
	not(h.IpcMode != "private", "its IPC is %q", h.IpcMode)
	not(h.UTSMode != "", "its UTS namespace is %s", h.UTSMode)
	not(h.UsernsMode != "", "its user namespace is %s", h.UsernsMode)
	not(h.CgroupnsMode != "private", "its cgroup namespace is %q", h.CgroupnsMode)
	not(h.Cgroup != "", "its cgroup is that of %s", h.Cgroup)
	not(h.NetworkMode != "none" && (p.Network == config.NetworkNone || !networks(p, string(h.NetworkMode))), "its network is %q", h.NetworkMode)
	not(len(h.Links)+len(h.ExtraHosts)+len(h.DNS) > 0, "it has links or names of hosts: %s %s %s", h.Links, h.ExtraHosts, h.DNS)
	not(len(h.PortBindings) > 0 || h.PublishAllPorts, "ports are published")

	not(h.CgroupParent != p.Slice, "it is below %q, not %s", h.CgroupParent, p.Slice)
	// An engine that started after the slots' CPUs became a partition believes that they do
	// not exist, so it is asked for none. The container then has those of the slice.
	named := h.CpusetCpus != "" || h.CpusetMems != ""
	not(named && (!sameSet(h.CpusetCpus, p.CPUs) || !sameSet(h.CpusetMems, p.MemoryNodes)), "its CPUs are %q on nodes %q, planned are %s on %s", h.CpusetCpus, h.CpusetMems, p.CPUs, p.MemoryNodes)
	not(h.Memory <= 0 || h.Memory > p.MemoryBytes, "its memory is %d, planned are at most %d", h.Memory, p.MemoryBytes)
	not(h.MemorySwap != h.Memory, "it may swap")
	not(h.PidsLimit == nil || *h.PidsLimit <= 0 || *h.PidsLimit > p.PidsLimit, "its processes are not limited to %d", p.PidsLimit)
	not(h.ShmSize <= 0 || h.ShmSize > p.ShmBytes, "its shared memory is %d, planned are at most %d", h.ShmSize, p.ShmBytes)
	not(h.OomScoreAdj != 0 || h.OomKillDisable != nil && *h.OomKillDisable, "it is not killed when it is out of memory")
	not(h.CPURealtimeRuntime != 0 || h.CPURealtimePeriod != 0, "it has real-time priority")
	for _, u := range h.Ulimits {
		not(u.Name == "rtprio" || u.Name == "nofile" && (u.Hard < 0 || u.Hard > 1<<20) || u.Name == "core" && u.Hard != 0, "its limit of %s is %d", u.Name, u.Hard)
	}
	not(h.RestartPolicy.Name != "" && h.RestartPolicy.Name != "no", "it is restarted: %s", h.RestartPolicy.Name)
	not(h.LogConfig.Type != "local" && h.LogConfig.Type != "none", "its log goes to %s", h.LogConfig.Type)
	not(c.Healthcheck == nil || !slices.Equal(c.Healthcheck.Test, []string{"NONE"}), "the engine runs a health check in it")
	not(h.Runtime != "runc", "its runtime is %q", h.Runtime)
	not(len(h.Annotations) > 0, "it has annotations: %v", h.Annotations)

	found = append(found, gpuFaults(p, h)...)
	found = append(found, mountFaults(p, c, h)...)
	for _, e := range c.Env {
		name, _, _ := strings.Cut(e, "=")
		not(matches(p.DropEnv, name) && !slices.Contains(p.Env, e), "it gets the variable %s", name)
	}
	not(c.Labels["kbnode.slot"] != strconv.Itoa(p.Slot), "its label names slot %q", c.Labels["kbnode.slot"])
	return found
}

// isJobProfile reports whether a security option is the AppArmor profile of jobs.
func isJobProfile(opt string) bool { return strings.HasPrefix(opt, "apparmor=kbnode-job-") }

// networks reports whether the slot's containers may have a network.
func networks(p plan.JobPolicy, name string) bool {
	return name == plan.NetworkName(p.Slot)
}

func gpuFaults(p plan.JobPolicy, h *container.HostConfig) (found []string) {
	if len(h.DeviceCgroupRules) > 0 {
		found = append(found, fmt.Sprintf("it has rules for devices: %s", h.DeviceCgroupRules))
	}
	for _, r := range h.DeviceRequests {
		planned := slices.Concat(p.CDIDevices, p.DeviceRequests) // never both
		if len(planned) == 0 || r.Count != 0 || !slices.Equal(r.DeviceIDs, planned) {
			found = append(found, fmt.Sprintf("it gets the devices %s (count %d), planned are %q", r.DeviceIDs, r.Count, planned))
		}
	}
	for _, d := range h.Devices {
		if !slices.Contains(p.DeviceNodes, d.PathOnHost) || strings.Contains(d.CgroupPermissions, "m") {
			found = append(found, fmt.Sprintf("it gets the device %s (%s)", d.PathOnHost, d.CgroupPermissions))
		}
	}
	return found
}

func mountFaults(p plan.JobPolicy, c *container.Config, h *container.HostConfig) (found []string) {
	if len(h.Binds)+len(h.VolumesFrom)+len(c.Volumes) > 0 {
		found = append(found, fmt.Sprintf("it mounts %s, volumes of %s, and volumes %v", h.Binds, h.VolumesFrom, c.Volumes))
	}
	for _, m := range h.Mounts {
		held := strings.HasPrefix(m.Source, filepath.Dir(p.Socket)+"/mounts/") ||
			p.DiskBytes > 0 && strings.HasPrefix(m.Source, plan.DiskMount(p.Slot)+"/containers/")
		if m.Type != mount.TypeBind || !held && (m.Source != p.Program() || !m.ReadOnly) {
			found = append(found, fmt.Sprintf("it mounts %s %s on %s", m.Type, m.Source, m.Target))
		}
	}
	return found
}

func dropped(list []string, name string) bool {
	return slices.ContainsFunc(list, func(c string) bool {
		c = strings.TrimPrefix(c, "CAP_")
		return c == name || c == "ALL"
	})
}

func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
	})
}

func sameSet(a, b string) bool {
	x, errX := cpuset.Parse(a)
	y, errY := cpuset.Parse(b)
	return errX == nil && errY == nil && x.Equal(y)
}
