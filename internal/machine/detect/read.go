// Package detect reads what a machine has into an inventory. It reports facts and
// decides nothing.
package detect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Options are which machine to read and how. The zero value reads this one.
type Options struct {
	// Root is "/" or "" for this machine. Any other directory is a tree of files that
	// describes a machine, including its GPUs: Read then asks none of this machine's
	// drivers or daemons.
	Root         string
	AgentPath    string       // buildkite-agent; "" searches the directories of packages, then PATH
	DockerSocket string       // "" is config.DefaultDockerSocket
	KeepNames    bool         // Capture also writes the host name and serial numbers
	Log          *slog.Logger // nil logs nothing
}

// livePath and nvmlPath are files of a captured tree that no machine has.
const (
	livePath = "kbnode/live.json"
	nvmlPath = "kbnode/nvml.json"
)

// Live is the part of an Inventory that comes from programs and the kernel, not from files.
// A captured machine has it in kbnode/live.json.
type Live struct {
	Schema   int                  `json:"schema"`
	Hostname string               `json:"hostname,omitempty"` // left out of a capture unless asked for
	Arch     string               `json:"arch"`
	Software inventory.Software   `json:"software"`
	Disks    []inventory.DiskFree `json:"disks,omitempty"`
	Problems []inventory.Problem  `json:"problems,omitempty"` // with the fields above
}

// Read reads a machine. What cannot be read is omitted and named in Problems; an error
// means that the tree does not contain a machine.
func Read(ctx context.Context, opts Options) (*inventory.Inventory, error) {
	t, err := openTree(opts.Root)
	if err != nil {
		return nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	start := time.Now()

	// Daemons and drivers answer slowly; the files are read meanwhile.
	var wait sync.WaitGroup
	var live Live
	var nvidia struct {
		gpus     []inventory.GPU
		driver   *inventory.NVIDIA
		problems []inventory.Problem
	}
	wait.Go(func() { nvidia.gpus, nvidia.driver, nvidia.problems = readNVIDIA(ctx, t) })
	wait.Go(func() { live = readLive(ctx, t, opts) })
	inv, problems := readFiles(t)
	wait.Wait()
	if len(inv.CPU.List) == 0 {
		return nil, fmt.Errorf("read machine: no CPU below %s/%s; give a directory with a machine's /sys and /proc, or a file made by kbnode inventory --capture",
			strings.TrimSuffix(t.root, "/"), cpuDir)
	}

	if live.Arch != "" {
		inv.Arch = live.Arch
	}
	if live.Hostname != "" {
		inv.Hostname = live.Hostname
	}
	inv.Software, inv.Disks = live.Software, live.Disks
	inv.NVIDIA = nvidia.driver
	inv.GPUs = append(append([]inventory.GPU{}, nvidia.gpus...), inv.GPUs...) // never nil: JSON has a list
	sortGPUs(inv.GPUs)
	placeGPUs(t, inv)
	checkCDI(t, inv.GPUs, &inv.Software.Docker)
	inv.Problems = slices.Concat(problems, nvidia.problems, live.Problems)
	addUnread(inv, slices.Concat(live.Problems, t.unread()))
	log.Debug("inventory read", "path", t.root, "cpus", len(inv.CPU.List), "gpus", len(inv.GPUs), "took", time.Since(start))
	return inv, nil
}

// readFiles reads what every machine has in files.
func readFiles(t tree) (*inventory.Inventory, []inventory.Problem) {
	cpuinfo := t.text("proc/cpuinfo")
	inv := &inventory.Inventory{Schema: inventory.Schema, Arch: cpuArch(cpuinfo), Kernel: kernelRelease(t), OS: readOS(t, cpuinfo)}
	if words := strings.Fields(printable(t.text("etc/hostname"))); len(words) > 0 {
		inv.Hostname = words[0]
	}
	var problems, more []inventory.Problem
	inv.CPU, problems = readCPU(t, cpuinfo)
	inv.Memory, more = readMemory(t, &inv.CPU)
	problems = append(problems, more...)
	inv.GPUs, inv.AMD, more = readAMD(t)
	inv.Tuning = readTuning(t)
	return inv, append(problems, more...)
}

// readLive asks this machine's programs, or reads a captured machine's answers. For other
// trees it reports at least which programs are there.
func readLive(ctx context.Context, t tree, opts Options) Live {
	if t.live() {
		live := Live{Schema: inventory.Schema, Arch: runtime.GOARCH}
		var err error
		if live.Hostname, err = os.Hostname(); err != nil {
			live.Problems = append(live.Problems, inventory.Problem{Subject: inventory.SubjectHost, Detail: err.Error()})
		}
		askSoftware(ctx, t, opts, &live)
		return live
	}
	text, err := t.read(livePath)
	if errors.Is(err, fs.ErrNotExist) {
		return Live{Software: installed(t)}
	}
	var live Live
	if err == nil {
		err = json.Unmarshal([]byte(text), &live)
	}
	if err == nil && controls().MatchString(text) {
		err = errors.New("it contains control characters")
	}
	if err == nil && live.Schema != inventory.Schema {
		err = fmt.Errorf("it has schema %d, but this kbnode reads %d", live.Schema, inventory.Schema)
	}
	if err != nil {
		return Live{Software: installed(t), Problems: []inventory.Problem{{Subject: livePath, Detail: err.Error()}}}
	}
	return live
}

// controls matches characters, as JSON may write them, that a terminal acts on. A capture
// comes from someone else, and its content is printed.
var controls = lazy.Regexp(`(?i)\\u(00[01]|007f|00[89]|200[b-f]|202[a-e]|206)|[\x7f\x{80}-\x{9f}\p{Cf}]`)

// readOS reads os-release and whether the machine runs under a hypervisor.
func readOS(t tree, cpuinfo string) inventory.OS {
	text := t.text("etc/os-release")
	if text == "" {
		text = t.text("usr/lib/os-release")
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = printable(strings.Trim(value, `"'`))
		}
	}
	return inventory.OS{ID: values["ID"], VersionID: values["VERSION_ID"], PrettyName: values["PRETTY_NAME"], Virt: virtual(t, cpuinfo)}
}

const (
	dmiDir  = "sys/class/dmi/id"
	treeDir = "proc/device-tree"
)

// hypervisors are what names in a virtual machine's DMI tables begin with.
var hypervisors = []string{
	"QEMU", "KVM", "KubeVirt", "OpenStack", "oVirt", "Amazon EC2", "Google Compute Engine", "Alibaba Cloud ECS", "Virtual Machine", "Hyper-V",
	"VMware", "VMW", "Xen", "Parallels", "Apple Virtualization", "BHYVE", "Cloud Hypervisor",
}

// virtual reports whether the machine is a virtual one. x86 has a flag for it; on other
// machines it is in the names that the firmware gives, or in the device tree.
func virtual(t tree, cpuinfo string) bool {
	if flags := strings.Fields(cpuinfoField(cpuinfo, "flags")); len(flags) > 0 {
		return slices.Contains(flags, "hypervisor")
	}
	product := t.text(dmiDir + "/product_name")
	for _, name := range []string{product, t.text(dmiDir + "/sys_vendor"), t.text(dmiDir + "/chassis_vendor")} {
		is := slices.ContainsFunc(hypervisors, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if is && !strings.Contains(product, "metal") { // clouds also put their names on machines that they rent as a whole
			return true
		}
	}
	return t.text(treeDir+"/compatible") == "linux,dummy-virt" || t.exists(treeDir+"/hypervisor")
}

// kernelRelease returns what uname -r prints.
func kernelRelease(t tree) string {
	if release := printable(t.text("proc/sys/kernel/osrelease")); release != "" {
		return release
	}
	words := strings.Fields(printable(t.text("proc/version"))) // Linux version 6.1.0-…
	if len(words) > 2 {
		return words[2]
	}
	return ""
}

// ReadGPUs is like Read, but reads only the GPUs of the machine below root: they change
// while a machine runs, and everything else costs more.
func ReadGPUs(ctx context.Context, root string) ([]inventory.GPU, *inventory.NVIDIA, []inventory.Problem, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, nil, nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	gpus, nv, problems := readNVIDIA(ctx, t)
	more, _, amd := readAMD(t)
	gpus = append(gpus, more...)
	sortGPUs(gpus)
	unread := t.unread()
	markUnread(gpus, unread)
	return gpus, nv, slices.Concat(problems, amd, unread), nil
}
