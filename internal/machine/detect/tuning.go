package detect

import (
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// tuningFiles are settings of the running kernel that affect jobs' timings, and limits that
// slots share, and what processes may see of each other.
var tuningFiles = []string{
	"proc/irq/default_smp_affinity",
	"proc/sys/fs/aio-max-nr",
	"proc/sys/fs/epoll/max_user_watches",
	"proc/sys/fs/file-max",
	"proc/sys/fs/inotify/max_user_instances",
	"proc/sys/fs/inotify/max_user_watches",
	"proc/sys/fs/pipe-user-pages-soft",
	"proc/sys/kernel/numa_balancing",
	"proc/sys/kernel/pid_max",
	"proc/sys/kernel/pty/max",
	"proc/sys/kernel/threads-max",
	"proc/sys/kernel/yama/ptrace_scope",
	"proc/sys/net/ipv4/neigh/default/gc_thresh2",
	"proc/sys/net/ipv4/neigh/default/gc_thresh3",
	"proc/sys/net/ipv4/tcp_max_orphans",
	"proc/sys/net/ipv4/tcp_mem",
	"proc/sys/net/ipv4/udp_mem",
	"proc/sys/net/ipv6/neigh/default/gc_thresh2",
	"proc/sys/net/ipv6/neigh/default/gc_thresh3",
	"sys/devices/virtual/workqueue/cpumask",
	"sys/devices/virtual/workqueue/writeback/cpumask",
	"sys/kernel/mm/ksm/run",
	"sys/kernel/mm/transparent_hugepage/enabled",
	"sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
}

// readTuning reads the settings that this kernel has, and their values.
func readTuning(t tree) inventory.Tuning {
	var out inventory.Tuning
	for _, path := range tuningFiles {
		if text, err := t.read(path); err == nil || t.failedBelow(path) {
			out.Files = append(out.Files, inventory.TuningFile{Path: "/" + path, Value: printable(text)})
		}
	}
	if t.captured != nil { // a capture also has the files that a plan is compared with
		for _, n := range t.numbered("proc/irq", "") {
			t.text("proc/irq/" + strconv.Itoa(n) + "/smp_affinity_list")
		}
	}
	const dir = cpuDir + "/cpufreq"
	for _, n := range t.numbered(dir, "policy") {
		at := dir + "/policy" + strconv.Itoa(n)
		known := strings.Fields(printable(t.text(at + "/scaling_available_governors")))
		cpus, ok := t.cpus(at + "/affected_cpus")
		switch {
		case (!ok || len(known) == 0) && !t.failedBelow(at):
			continue
		case !ok:
			cpus = cpuset.Of(n) // a policy has the number of its first CPU
		}
		out.Governors = append(out.Governors, inventory.Governor{
			Path: "/" + at + "/scaling_governor", CPUs: cpus.String(), Value: printable(t.text(at + "/scaling_governor")), Known: known,
		})
	}
	return out
}
