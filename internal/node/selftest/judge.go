package selftest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// denied are the errors with which the kernel denies access.
var denied = []string{"EPERM", "EACCES", "ENOENT", "EROFS", "ENOTDIR", "ESRCH"}

// judgeContainer compares what a container saw with what a container of its slot should
// see. memory is the memory that the container asked for, in bytes.
func judgeContainer(s plan.Slot, p plan.JobPolicy, ask probe.Ask, memory int64, neighbor string, f *probe.Facts) []Check {
	strict := p.Profile == config.ProfileStrict
	t := &tries{do: "sudo kbnode reconcile; the engine's own version and configuration may have changed, too"}
	for _, try := range f.Tries {
		held := slices.Contains(denied, try.Saw)
		tried := try.Kind + " " + try.What
		switch {
		case try.Kind == "call":
			// Root in the container has nothing to become.
			held = slices.Contains([]string{"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT"}, try.Saw) || try.What == "root" && try.Saw == "EALREADY" && !strict
			tried = try.What
		case try.What == plan.ContainerBinary && try.Kind == "open":
			held = try.Saw == "ok"
		case try.Kind == "tcp":
			held = try.Saw != "ok"
			tried = "connect to " + try.What
			if try.What == neighbor {
				tried += ", a container of another slot"
			}
		case try.Kind == "number":
			tried = "device " + try.What
		case try.Kind == "window":
			held = held || try.Saw == probe.Covered
			tried = "read or map " + try.What
		}
		t.add(held, tried, try.Saw)
	}
	t.add(slot.SameSet(p.CPUs, f.CPUs), "all CPUs", "CPUs "+f.CPUs)
	t.add(len(f.Writable) == 0, "settings of the node in /proc", fmt.Sprintf("%q can be written", f.Writable))
	t.add(f.Processes < 16, "processes of others", fmt.Sprintf("%d processes", f.Processes))
	t.add(f.Status["NoNewPrivs"] == "1", "new privileges", "NoNewPrivs "+f.Status["NoNewPrivs"])
	t.add(f.Status["Seccomp"] == "2", "system calls filtered", "Seccomp "+f.Status["Seccomp"])
	t.add(capsHeld(f.Status["CapBnd"], strict), "capabilities", "CapBnd "+f.Status["CapBnd"])
	if strict {
		t.add(f.UID != 0, "its user", fmt.Sprintf("user %d", f.UID))
		t.add(f.RootWrites == "EROFS" || f.RootWrites == "EACCES", "writing to the root", f.RootWrites)
	}
	lo := len(f.Interfaces) == 1 && f.Interfaces[0] == "lo"
	if p.Network == config.NetworkNone {
		t.add(lo, "a network", strings.Join(f.Interfaces, " "))
	} else {
		t.add(len(f.Interfaces) == 2 && !lo, "other interfaces", strings.Join(f.Interfaces, " "))
	}
	foreign := slices.DeleteFunc(slices.Clone(f.Nodes), func(node string) bool { return ownNode(s, node) })
	t.add(len(foreign) == 0, "nodes of other devices", fmt.Sprint(f.Nodes))
	others := slices.DeleteFunc(slices.Clone(f.Compute), func(node string) bool { return ownNode(s, node) })
	t.add(len(others) == 0, "other GPUs in the compute driver's topology", fmt.Sprint(f.Compute))
	missing := slices.DeleteFunc(gpuNodes(s), func(node string) bool { return slices.Contains(f.Nodes, node) })
	t.add(len(missing) == 0, "its own GPU", fmt.Sprint(f.Nodes))
	secrets := slices.DeleteFunc(slices.Clone(f.Env), func(name string) bool {
		return !strings.HasPrefix(name, "BUILDKITE_AGENT_") && name != "DOCKER_HOST" && !strings.HasPrefix(name, "KBNODE_")
	})
	t.add(len(secrets) == 0, "the agent's variables", fmt.Sprint(secrets))
	t.add(isAtMost(f.Cgroup["memory.max"], min(memory, p.MemoryBytes)), "its memory", "memory.max "+f.Cgroup["memory.max"])
	if swap, ok := f.Cgroup["memory.swap.max"]; ok {
		t.add(swap == "0", "swap", "memory.swap.max "+swap)
	}
	t.add(isAtMost(f.Cgroup["pids.max"], p.PidsLimit), "its processes", "pids.max "+f.Cgroup["pids.max"])
	for _, dir := range ask.Disks {
		size := f.Disks[dir]
		t.add(size > 0 && size <= p.DiskBytes, "filling the disk below "+dir, fmt.Sprintf("%d MiB in all, planned: %d", size>>20, p.DiskBytes>>20))
	}
	return t.checks
}

// isAtMost reports whether text is a limit, not "max", and is at most most.
func isAtMost(text string, most int64) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && n > 0 && n <= most
}

// jobCaps are the capabilities of a container in the compatible profile: Docker's default
// set without AUDIT_WRITE (29), MKNOD (27) and NET_RAW (13), by their numbers in
// linux/capability.h.
const jobCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP |
	1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETFCAP

// capsHeld reports whether a hexadecimal set of capabilities has no more than the profile
// allows: jobCaps, or none in the strict profile.
func capsHeld(text string, strict bool) bool {
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return false
	}
	if strict {
		return set == 0
	}
	return set&^jobCaps == 0
}

// migCaps is the prefix of MIG instances' capabilities. No two instances share one.
const migCaps = "/dev/nvidia-caps/"

// gpuNodes returns the devices that a container needs to have the slot's GPU. An engine may
// leave out those that NVIDIA GPUs share or use for graphics.
func gpuNodes(s plan.Slot) []string {
	var nodes []string
	for _, g := range s.GPUs {
		for _, node := range g.Devices {
			number, is := strings.CutPrefix(node, "/dev/nvidia")
			if g.Vendor == "amd" || is && strings.Trim(number, "0123456789") == "" || strings.HasPrefix(node, migCaps) {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

// ownNode reports whether a device in a container may be there: one of the slot's, or one
// that all NVIDIA GPUs share, such as /dev/nvidiactl, or use for graphics. AMD devices must
// be the slot's.
func ownNode(s plan.Slot, node string) bool {
	nvidia := false
	for _, g := range s.GPUs {
		if slices.Contains(g.Devices, node) {
			return true
		}
		nvidia = nvidia || g.Vendor != "amd"
	}
	if !nvidia || strings.HasPrefix(node, migCaps) {
		return false
	}
	name := filepath.Base(node)
	numbered := strings.TrimLeft(strings.TrimPrefix(name, "nvidia"), "0123456789") == "" && name != "nvidia"
	return strings.HasPrefix(name, "nvidia") && !numbered || strings.HasPrefix(name, "card") && filepath.Dir(node) == "/dev/dri"
}
