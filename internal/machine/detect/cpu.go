package detect

import (
	"cmp"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

const cpuDir = "sys/devices/system/cpu"

// readCPU reads the processor topology. readMemory fills in the NUMA nodes.
func readCPU(t tree, cpuinfo string) (inventory.CPU, []inventory.Problem) {
	present, online := cpuLists(t)
	allowed, problems := allowedCPUs(t, online)
	c := inventory.CPU{
		Model:   cpuModel(cpuinfo),
		Present: present.String(),
		Online:  online.String(),
		Allowed: allowed.String(),
	}

	classes := coreClasses(t)
	hasCapacity, hasMIDR := false, false
	ids := online.Ints()
	c.List = make([]inventory.LogicalCPU, len(ids))
	index := make(map[int]int, len(ids))
	for i, id := range ids {
		c.List[i] = inventory.LogicalCPU{ID: id, Package: -1, Die: -1, L3: -1, Core: -1, NUMANode: -1, Allowed: allowed.Contains(id)}
		index[id] = i
		hasCapacity = hasCapacity || i == 0 && t.exists(cpuPath(id, "cpu_capacity"))
		hasMIDR = hasMIDR || i == 0 && t.exists(cpuPath(id, midrFile))
	}
	// CPUs that share a core or cache report the same, so each core and each cache is read
	// once.
	for i := range c.List {
		cpu := &c.List[i]
		if cpu.Core < 0 {
			readCore(t, c.List, index, cpu.ID, online)
		}
		if cpu.L3 < 0 {
			sharing := l3CPUs(t, cpu.ID).Intersect(online).Ints()
			for _, id := range sharing {
				c.List[index[id]].L3 = sharing[0]
			}
		}
		if hasCapacity {
			cpu.Capacity = max(0, t.id(cpuPath(cpu.ID, "cpu_capacity")))
		} else {
			cpu.Capacity = classCapacity[classes[cpu.ID]]
		}
		cpu.Kind = classes[cpu.ID]
		if hasMIDR {
			cpu.Kind = midrKind(t, cpu.ID)
		}
	}
	countThreads(c.List, present.Equal(online))
	return c, problems
}

// cpuLists returns the CPUs that the machine has and those that run. A CPU's own online
// file takes precedence over the list if it contains 0; without one the CPU is online: CPUs
// that cannot be switched off have none.
func cpuLists(t tree) (present, online cpuset.Set) {
	dirs := cpuset.Of(t.numbered(cpuDir, "cpu")...)
	present, ok := t.cpus(path.Join(cpuDir, "present"))
	if !ok {
		present = dirs
	}
	online, ok = t.cpus(path.Join(cpuDir, "online"))
	if !ok {
		online = present
	}
	if dirs.Len() > 0 {
		online = online.Intersect(dirs)
	}
	var off []int
	for _, id := range online.Ints() {
		if t.text(cpuPath(id, "online")) == "0" {
			off = append(off, id)
		}
	}
	online = online.Difference(cpuset.Of(off...))
	return present.Union(online), online
}

// allowedCPUs returns the online CPUs in the machine's own cpuset. Only the root's cpuset
// counts: that of the reading process depends on where kbnode was started. CPUs that
// buildkite.slice has as its own partition are missing from the root's set although kbnode
// assigns them.
func allowedCPUs(t tree, online cpuset.Set) (cpuset.Set, []inventory.Problem) {
	const root, slice = "sys/fs/cgroup", "sys/fs/cgroup/buildkite.slice"
	set, ok := t.cpus(path.Join(root, "cpuset.cpus.effective"))
	if ok && t.text(path.Join(slice, "cpuset.cpus.partition")) == "root" {
		own, _ := t.cpus(path.Join(slice, "cpuset.cpus"))
		set = set.Union(own)
	}
	if !ok {
		set, ok = t.cpus(path.Join(root, "cpuset/cpuset.effective_cpus"), "dev/cpuset/cpus")
	}
	if !ok && !t.live() {
		// A tree recorded from inside a version 1 cpuset, without the root's file: the
		// recorder's own cpuset is all that is known.
		own := strings.Trim(t.text("proc/self/cpuset"), "/")
		set, ok = t.cpus(path.Join("dev/cpuset", own, "cpus"))
	}
	if !ok {
		return online, nil
	}
	allowed := set.Intersect(online)
	if allowed.Len() == 0 {
		return online, []inventory.Problem{{Subject: "cpuset", Detail: "the root cgroup's cpuset " + set.String() + " has no online CPU; it is ignored"}}
	}
	return allowed, nil
}

// readCore fills in the core of a CPU, for all its siblings.
func readCore(t tree, list []inventory.LogicalCPU, index map[int]int, id int, online cpuset.Set) {
	siblings, _ := t.cpus(
		cpuPath(id, "topology/core_cpus_list"), cpuPath(id, "topology/thread_siblings_list"),
		cpuPath(id, "topology/core_cpus"), cpuPath(id, "topology/thread_siblings"))
	siblings = siblings.Union(cpuset.Of(id)).Intersect(online)
	pkg, die := t.id(cpuPath(id, "topology/physical_package_id")), t.id(cpuPath(id, "topology/die_id"))
	ids := siblings.Ints()
	for _, s := range ids {
		cpu := &list[index[s]]
		cpu.Package, cpu.Die, cpu.Core, cpu.Siblings = pkg, die, ids[0], ids
	}
}

// l3CPUs returns the CPUs that share a CPU's level-3 cache, none if it has none.
func l3CPUs(t tree, id int) cpuset.Set {
	shared := func(index string) cpuset.Set {
		set, _ := t.cpus(cpuPath(id, "cache/"+index+"/shared_cpu_list"), cpuPath(id, "cache/"+index+"/shared_cpu_map"))
		return set
	}
	// This file nearly always exists, which saves reading a directory for each cache.
	if t.text(cpuPath(id, "cache/index3/level")) == "3" {
		return shared("index3")
	}
	for _, index := range t.names(cpuPath(id, "cache")) {
		if strings.HasPrefix(index, "index") && t.text(cpuPath(id, "cache/"+index+"/level")) == "3" {
			return shared(index)
		}
	}
	return cpuset.Set{}
}

// midrFile is the register that identifies an Arm core.
const midrFile = "regs/identification/midr_el1"

// midrKind returns the implementer and part of a core, without variant and revision.
func midrKind(t tree, id int) string {
	midr, ok := t.number(cpuPath(id, midrFile))
	if !ok {
		return ""
	}
	return fmt.Sprintf("%#x %#x", midr>>24&0xff, midr>>4&0xfff)
}

// classCapacity rates the two kinds of cores of a hybrid x86 processor, whose kernel driver
// names them without rating them. It is a ranking, not a measurement.
var classCapacity = map[string]int{"core": 1024, "atom": 512}

// coreClasses returns the kinds of the cores of a hybrid x86 processor, by CPU.
func coreClasses(t tree) map[int]string {
	classes := map[int]string{}
	for class := range classCapacity {
		set, _ := t.cpus("sys/devices/cpu_" + class + "/cpus")
		for _, id := range set.Ints() {
			classes[id] = class
		}
	}
	return classes
}

// countThreads fills in Threads. The kernel removes an offline CPU from its siblings'
// lists, so while some CPU is offline only the widest cores are known to be complete.
func countThreads(list []inventory.LogicalCPU, complete bool) {
	widest := 0
	for i := range list {
		widest = max(widest, len(list[i].Siblings))
	}
	for i := range list {
		if n := len(list[i].Siblings); complete || n == widest {
			list[i].Threads = n
		}
	}
}

// cpuModel returns the name of the first CPU in /proc/cpuinfo. Arm prints numbers instead
// of a name; those of server cores are translated here.
func cpuModel(cpuinfo string) string {
	for _, key := range []string{"model name", "cpu"} {
		if model := cpuinfoField(cpuinfo, key); model != "" {
			return printable(model)
		}
	}
	implementer, part := cpuinfoField(cpuinfo, "CPU implementer"), cpuinfoField(cpuinfo, "CPU part")
	if implementer+part == "" {
		return ""
	}
	return "Arm " + cmp.Or(neoverse[implementer+" "+part], printable(implementer+" "+part))
}

// neoverse names Arm's server cores by implementer and part.
var neoverse = map[string]string{
	"0x41 0xd0c": "Neoverse-N1", "0x41 0xd40": "Neoverse-V1", "0x41 0xd49": "Neoverse-N2", "0x41 0xd4f": "Neoverse-V2", "0x41 0xd84": "Neoverse-V3",
}

func cpuinfoField(cpuinfo, key string) string {
	for line := range strings.Lines(cpuinfo) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// cpuArch guesses the architecture, as GOARCH names it, of a tree that does not name it,
// from fields that only one architecture has in /proc/cpuinfo.
func cpuArch(cpuinfo string) string {
	switch {
	case cpuinfoField(cpuinfo, "CPU implementer") != "":
		return "arm64"
	case cpuinfoField(cpuinfo, "vendor_id") != "":
		return "amd64"
	case strings.HasPrefix(cpuinfoField(cpuinfo, "cpu"), "POWER"):
		return "ppc64le"
	}
	return ""
}

func cpuPath(id int, file string) string {
	return cpuDir + "/cpu" + strconv.Itoa(id) + "/" + file
}
