package detect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// addUnread adds problems with what could not be read, and marks the affected GPUs.
func addUnread(inv *inventory.Inventory, problems []inventory.Problem) {
	for _, p := range problems {
		if !slices.Contains(inv.Problems, p) {
			inv.Problems = append(inv.Problems, p)
		}
	}
	silent := func(g inventory.GPU) bool { return g.Vendor == "nvidia" && g.Unread && g.NVML == nil }
	unread := func(p inventory.Problem) bool {
		switch p.Subject {
		case inventory.SubjectCDIFile:
			return false
		case inventory.SubjectMemory, inventory.SubjectGPUs:
			return true
		case inventory.SubjectNVML:
			return slices.ContainsFunc(inv.GPUs, silent)
		}
		hung := func(g inventory.GPU) bool { return silent(g) && p.Subject == inventory.GPUSubject(g.PCI) }
		return slices.Contains(problems, p) || slices.ContainsFunc(inv.GPUs, hung)
	}
	for _, p := range inv.Problems {
		if !slices.Contains(inv.Unread, p.Subject) && unread(p) {
			inv.Unread = append(inv.Unread, p.Subject)
		}
	}
	markUnread(inv.GPUs, problems)
}

// failures are the files of a tree that could not be read, by path.
type failures struct {
	mu   sync.Mutex
	list map[string]error
}

// fail records that a file could not be read. A file that does not exist is not a failure,
// and neither is a link of a recorded tree that leads out of it.
func (t tree) fail(path string, err error) {
	var errno syscall.Errno
	if t.failed == nil || !errors.As(err, &errno) || errno == syscall.ENOENT || errno == syscall.ENOTDIR {
		return
	}
	t.failed.mu.Lock()
	defer t.failed.mu.Unlock()
	if t.failed.list[path] == nil {
		t.failed.list[path] = errno
	}
}

// failedBelow reports whether a file at or below a path could not be read.
func (t tree) failedBelow(path string) bool {
	if t.failed == nil {
		return false
	}
	t.failed.mu.Lock()
	defer t.failed.mu.Unlock()
	for failed := range t.failed.list {
		if failed == path || strings.HasPrefix(failed, path+"/") {
			return true
		}
	}
	return false
}

// unplanned returns a tree of the same files that ignores failures, for facts that no plan
// uses.
func (t tree) unplanned() tree {
	t.failed = nil
	return t
}

// unread returns a problem for each subject of which something could not be read.
func (t tree) unread() []inventory.Problem {
	t.failed.mu.Lock()
	defer t.failed.mu.Unlock()
	bySubject := map[string][]string{}
	for path := range t.failed.list {
		subject := subjectOf(path)
		bySubject[subject] = append(bySubject[subject], path)
	}
	var problems []inventory.Problem
	for subject, paths := range bySubject {
		slices.Sort(paths)
		detail := fmt.Sprintf("read /%s: %v", paths[0], t.failed.list[paths[0]])
		if n := len(paths) - 1; n > 0 {
			detail += fmt.Sprintf(" (and %d more)", n)
		}
		problems = append(problems, inventory.Problem{Subject: subject, Detail: printable(detail)})
	}
	slices.SortFunc(problems, func(a, b inventory.Problem) int { return strings.Compare(a.Subject, b.Subject) })
	return problems
}

// subjects maps files to subjects, by prefix; the first match counts.
var subjects = []struct{ prefix, subject string }{
	{cpuDir + "/cpufreq", inventory.SubjectTuning},
	{cpuDir, inventory.SubjectCPU}, {"sys/devices/cpu_", inventory.SubjectCPU}, {"proc/cpuinfo", inventory.SubjectCPU},
	{dmiDir, inventory.SubjectCPU}, {treeDir, inventory.SubjectCPU}, // who wrote the topology
	{"sys/fs/cgroup/cgroup.controllers", inventory.SubjectFiles},
	{"sys/fs/cgroup", inventory.SubjectCPU}, {"dev/cpuset", inventory.SubjectCPU}, {"proc/self/cpuset", inventory.SubjectCPU},
	{nodeDir, inventory.SubjectMemory}, {"proc/meminfo", inventory.SubjectMemory}, {"sys/kernel/mm/hugepages", inventory.SubjectMemory},
	{pciDir, inventory.SubjectGPUs}, {pciRoots + "/pci", inventory.SubjectGPUs}, {nvidiaProc + "/gpus", inventory.SubjectGPUs}, {kfdDir, inventory.SubjectGPUs}, {kfdDirVirtual, inventory.SubjectGPUs},
	{"proc/driver", inventory.SubjectDriver}, {"proc/devices", inventory.SubjectDriver}, {"sys/module", inventory.SubjectDriver},
	{"etc/cdi", inventory.SubjectCDI}, {"var/run/cdi", inventory.SubjectCDI}, {"run/cdi", inventory.SubjectCDI},
	{"etc/hostname", inventory.SubjectHost}, {"etc/os-release", "os"}, {"usr/lib/os-release", "os"},
	{"proc/sys/kernel/osrelease", "os"}, {"proc/version", "os"},
	{"proc", inventory.SubjectTuning}, {"sys", inventory.SubjectTuning},
}

func subjectOf(path string) string {
	for _, dir := range []string{pciDir + "/", nvidiaProc + "/gpus/"} {
		if rest, ok := strings.CutPrefix(path, dir); ok {
			name, _, _ := strings.Cut(rest, "/")
			if pci, ok := inventory.PCIAddress(name); ok {
				return inventory.GPUSubject(pci)
			}
		}
	}
	for _, s := range subjects {
		if strings.HasPrefix(path, s.prefix) {
			return s.subject
		}
	}
	return inventory.SubjectFiles
}

// markUnread marks the GPUs of which something could not be read.
func markUnread(gpus []inventory.GPU, problems []inventory.Problem) {
	for i := range gpus {
		g := &gpus[i]
		g.Unread = g.Unread || slices.ContainsFunc(problems, func(p inventory.Problem) bool { return p.Subject == inventory.GPUSubject(g.PCI) })
	}
}
