// Package machinetest writes the sysfs and proc tree of a described machine for tests. It
// knows the files of the kernel and the GPU drivers, but not what kbnode makes of them.
package machinetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

// Machine describes a machine. All its packages and nodes are alike, except for the lists.
type Machine struct {
	Name     string // for names of tests
	Arch     string // "amd64" (also if ""), "arm64" or "ppc64le"
	Model    string // of the CPU
	Packages int
	Nodes    int // NUMA nodes of each package; 0 means a kernel without NUMA
	Cores    int // of each node (of each package without NUMA)
	Threads  int // of each core; 0 means 1
	// Adjacent numbers the threads of a core consecutively, like virtual machines and
	// POWER. Otherwise the first threads of all cores come first.
	Adjacent   bool
	CoresPerL3 int // 0 means no level-3 cache
	NodeOrder  []int
	Hypervisor bool

	NodeBytes  int64 // memory of each node (of the machine without NUMA)
	Hugepages  int64 // 1 GiB pages reserved on each node
	MemoryOnly []MemoryNode
	// Distances is the kernel's table, by node in ascending order. nil means 10 for the
	// node itself, 12 within the package, 32 elsewhere, 80 to memory without CPUs.
	Distances [][]int

	Offline []int  // CPUs that are switched off
	Allowed string // the root cgroup's effective cpuset; "" means all online CPUs

	NVIDIA []NVIDIA
	// NVIDIADriver is the version in /proc/driver/nvidia; "" means that there is no driver
	// and the GPUs are only PCI devices.
	NVIDIADriver string
	AMD          []AMD
	NoKFD        bool // the amdgpu driver is not loaded

	// Live becomes kbnode/live.json, a capture's answers of daemons and programs; nil
	// writes none. It is marshaled unless it is a json.RawMessage.
	Live any
	// Files are written as they are, and replace files that the description produces.
	Files map[string]string
}

// MemoryNode is a NUMA node without CPUs.
type MemoryNode struct {
	ID    int
	Bytes int64
}

// NVIDIA is one NVIDIA GPU.
type NVIDIA struct {
	PCI        string
	Device     string // PCI device ID: "2901"
	Model      string
	UUID       string
	Minor      int
	Node       int // NUMA node in sysfs; -1 means unknown
	MemoryNode int // NUMA node that is its memory; 0 or less means none
	// MIG are its instances. A machine that has instances or links also has NVML's report,
	// kbnode/nvml.json: no file of the driver contains them.
	MIG   []MIG
	Links []int // indices in Machine.NVIDIA of other GPUs that NVLink bridges lead to
	// Dead omits the driver's entry: the GPU fell off the bus after the PCI scan.
	Dead bool
}

// MIG is one MIG instance.
type MIG struct {
	Profile     string // "1g.23gb"
	ProfileID   int
	GPUInstance int
	Start, Size int // memory slices
	Slices, SMs int
	MiB         int64
}

// AMD is one AMD GPU, which KFD shows as Partitions nodes.
type AMD struct {
	PCI        string
	Device     string // PCI device ID: "74a1"
	Product    string // in the board's memory; "" means unreadable
	UniqueID   uint64
	Node       int
	VRAM       int64
	Used       int64
	Render     int // first render minor
	Target     int // gfx_target_version
	Partitions int // 0 means 1
	// HighNumber puts the partition's number into bits 28 to 31 of location_id, like
	// drivers of 2024; others write it over the PCI function.
	HighNumber bool
	Links      []int // indices in Machine.AMD of other GPUs at the ends of its xGMI links
	Compute    string
	Memory     string
	Dead       bool // no KFD node
}

// Dir writes the machine's files into a new directory that is removed after the test. It is
// in memory if possible: a machine has thousands of files.
func (m Machine) Dir(tb testing.TB) string {
	tb.Helper()
	dir := must.MemoryDir(tb)
	m.Write(tb, dir)
	return dir
}

// Write writes the machine's files below dir.
func (m Machine) Write(tb testing.TB, dir string) {
	tb.Helper()
	files := m.files()
	maps.Copy(files, m.Files)
	made := map[string]bool{}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if parent := filepath.Dir(path); !made[parent] {
			if err := os.MkdirAll(parent, 0o750); err != nil {
				tb.Fatal(err)
			}
			made[parent] = true
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// files returns the machine's files by path below its root.
func (m Machine) files() map[string]string {
	f := map[string]string{
		"etc/os-release":                   "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nID=ubuntu\nVERSION_ID=\"24.04\"\n",
		"proc/sys/kernel/osrelease":        "6.8.0-60-generic",
		"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc",
		"etc/cron.d/e2scrub_all":           "",
		"usr/bin/git":                      "",
	}
	if m.Live != nil {
		raw, ok := m.Live.(json.RawMessage)
		if !ok {
			var err error
			if raw, err = json.MarshalIndent(m.Live, "", "\t"); err != nil {
				panic(fmt.Sprintf("machinetest: %v", err))
			}
		}
		f["kbnode/live.json"] = string(raw)
	}
	m.cpuFiles(f)
	m.nodeFiles(f)
	m.nvidiaFiles(f)
	m.nvmlFiles(f)
	m.amdFiles(f)
	return f
}

// cpu is the place of one logical CPU.
type cpu struct{ id, pkg, node, core, l3 int }

// cpus returns all CPUs of the machine, by ID.
func (m Machine) cpus() []cpu {
	threads, nodes := max(1, m.Threads), max(1, m.Nodes)
	total := m.Packages * nodes * m.Cores
	var out []cpu
	for core := range total {
		node := core / m.Cores
		l3 := -1
		if m.CoresPerL3 > 0 {
			l3 = core / m.CoresPerL3
		}
		for thread := range threads {
			id := thread*total + core
			if m.Adjacent {
				id = core*threads + thread
			}
			out = append(out, cpu{id: id, pkg: node / nodes, node: m.nodeID(node), core: core, l3: l3})
		}
	}
	slices.SortFunc(out, func(a, b cpu) int { return a.id - b.id })
	return out
}

// nodeID returns the number that the firmware gives to the n-th node.
func (m Machine) nodeID(n int) int {
	if m.NodeOrder != nil {
		return m.NodeOrder[n]
	}
	return n
}

func (m Machine) cpuFiles(f map[string]string) {
	const dir = "sys/devices/system/cpu"
	all := m.cpus()
	running := slices.DeleteFunc(slices.Clone(all), func(c cpu) bool { return slices.Contains(m.Offline, c.id) })
	f[dir+"/present"], f[dir+"/possible"] = list(all), list(all)
	f[dir+"/online"] = list(running)
	f["sys/fs/cgroup/cpuset.cpus.effective"] = list(running)
	if m.Allowed != "" {
		f["sys/fs/cgroup/cpuset.cpus.effective"] = m.Allowed
	}
	f["proc/cpuinfo"] = m.cpuinfo()
	shared := func(same func(a cpu) bool) string {
		return list(slices.DeleteFunc(slices.Clone(running), func(a cpu) bool { return !same(a) }))
	}
	cores, caches := map[int]string{}, map[int]string{}
	for _, c := range all {
		at := fmt.Sprintf("%s/cpu%d/", dir, c.id)
		if c.id > 0 {
			f[at+"online"] = "1"
		}
		if slices.Contains(m.Offline, c.id) {
			f[at+"online"] = "0" // and no topology or cache
			continue
		}
		if cores[c.core] == "" {
			cores[c.core] = shared(func(a cpu) bool { return a.core == c.core })
		}
		f[at+"topology/physical_package_id"] = strconv.Itoa(c.pkg)
		f[at+"topology/die_id"] = "0"
		f[at+"topology/core_cpus_list"] = cores[c.core]
		if c.l3 >= 0 {
			if caches[c.l3] == "" {
				caches[c.l3] = shared(func(a cpu) bool { return a.l3 == c.l3 })
			}
			f[at+"cache/index3/level"] = "3"
			f[at+"cache/index3/shared_cpu_list"] = caches[c.l3]
		}
	}
}

func (m Machine) cpuinfo() string {
	switch m.Arch {
	case "arm64":
		return "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
	case "ppc64le":
		return "processor\t: 0\ncpu\t\t: " + m.Model + "\n"
	}
	flags := "fpu vme de pse tsc msr ht lm"
	if m.Hypervisor {
		flags += " hypervisor"
	}
	return "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: " + m.Model + "\nflags\t\t: " + flags + "\n"
}

func (m Machine) nodeFiles(f map[string]string) {
	const dir = "sys/devices/system/node"
	ids := make([]int, 0, m.Packages*m.Nodes+len(m.MemoryOnly))
	pkg := map[int]int{}
	for n := range m.Packages * m.Nodes {
		ids = append(ids, m.nodeID(n))
		pkg[m.nodeID(n)] = n / m.Nodes
	}
	total := m.NodeBytes * int64(max(1, len(ids)))
	for _, n := range m.MemoryOnly {
		ids = append(ids, n.ID)
		pkg[n.ID] = -1
		total += n.Bytes
	}
	f["proc/meminfo"] = fmt.Sprintf("MemTotal:       %d kB\nMemFree:        %d kB", total>>10, total>>11)
	const huge = "hugepages/hugepages-1048576kB/nr_hugepages"
	if m.Nodes == 0 {
		f["sys/kernel/mm/"+huge] = strconv.FormatInt(m.Hugepages, 10)
		return
	}
	slices.Sort(ids)
	f[dir+"/online"] = cpuset.Of(ids...).String()
	for i, id := range ids {
		at := fmt.Sprintf("%s/node%d/", dir, id)
		bytes, pages := m.NodeBytes, m.Hugepages
		if j := slices.IndexFunc(m.MemoryOnly, func(n MemoryNode) bool { return n.ID == id }); j >= 0 {
			bytes, pages = m.MemoryOnly[j].Bytes, 0
		}
		here := slices.DeleteFunc(m.cpus(), func(c cpu) bool { return c.node != id || pkg[id] < 0 || slices.Contains(m.Offline, c.id) })
		f[at+"cpulist"] = list(here)
		f[at+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        %d kB", id, bytes>>10, id, bytes>>11)
		f[at+huge] = strconv.FormatInt(pages, 10)
		var row []string
		for j, to := range ids {
			distance := 32
			switch {
			case m.Distances != nil:
				distance = m.Distances[i][j]
			case id == to:
				distance = 10
			case pkg[id] < 0 || pkg[to] < 0:
				distance = 80
			case pkg[id] == pkg[to]:
				distance = 12
			}
			row = append(row, strconv.Itoa(distance))
		}
		f[at+"distance"] = strings.Join(row, " ")
	}
}

// list formats CPUs as the kernel does.
func list(cpus []cpu) string {
	ids := make([]int, 0, len(cpus))
	for _, c := range cpus {
		ids = append(ids, c.id)
	}
	return cpuset.Of(ids...).String()
}
