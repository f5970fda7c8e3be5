package machinetest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// withTuning adds a distribution's kernel settings. If shared is set, the threads of a core
// share a cpufreq policy.
func (m Machine) withTuning(shared bool, governors string) Machine {
	all := m.cpus()
	mask := strings.TrimSuffix(strings.Repeat("ffffffff,", len(all)/32), ",")
	f := map[string]string{
		"proc/irq/default_smp_affinity":                        mask,
		"proc/irq/0/smp_affinity_list":                         list(all),
		"proc/irq/128/smp_affinity_list":                       "4",
		"proc/sys/fs/aio-max-nr":                               "65536",
		"proc/sys/fs/epoll/max_user_watches":                   "475839283",
		"proc/sys/fs/file-max":                                 "9223372036854775807",
		"proc/sys/fs/inotify/max_user_instances":               "128",
		"proc/sys/fs/inotify/max_user_watches":                 "1048576",
		"proc/sys/fs/pipe-user-pages-soft":                     "16384",
		"proc/sys/kernel/numa_balancing":                       "1",
		"proc/sys/kernel/pid_max":                              "4194304",
		"proc/sys/kernel/pty/max":                              "4096",
		"proc/sys/kernel/threads-max":                          "16510904",
		"proc/sys/kernel/yama/ptrace_scope":                    "0",
		"proc/sys/net/ipv4/neigh/default/gc_thresh2":           "512",
		"proc/sys/net/ipv4/neigh/default/gc_thresh3":           "1024",
		"sys/devices/virtual/workqueue/cpumask":                mask,
		"sys/devices/virtual/workqueue/writeback/cpumask":      mask,
		"sys/kernel/mm/ksm/run":                                "0",
		"sys/kernel/mm/transparent_hugepage/enabled":           "[always] madvise never",
		"sys/kernel/mm/transparent_hugepage/khugepaged/defrag": "1",
	}
	for _, c := range all {
		cpus := []int{c.id}
		if shared {
			cpus = nil
			for _, other := range all {
				if other.core == c.core {
					cpus = append(cpus, other.id)
				}
			}
		}
		if cpus[0] != c.id {
			continue
		}
		text := make([]string, len(cpus))
		for i, id := range cpus {
			text[i] = strconv.Itoa(id)
		}
		at := "sys/devices/system/cpu/cpufreq/policy" + strconv.Itoa(c.id) + "/"
		f[at+"affected_cpus"] = strings.Join(text, " ")
		f[at+"scaling_available_governors"] = governors
		f[at+"scaling_governor"] = "powersave"
	}
	for _, g := range m.AMD {
		f[fmt.Sprintf("%s%s/power_dpm_force_performance_level", pciDir, g.PCI)] = "auto"
	}
	maps.Copy(f, m.Files)
	m.Files = f
	return m
}
