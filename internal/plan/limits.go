package plan

import (
	"strconv"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// systemTasks is the allowance for processes and threads of the node itself.
const systemTasks = 8192

// addLimits raises kernel limits per user or machine on what is charged to the
// slot's memory anyway: root in all containers is one user, so one slot could leave
// none for the others and the node. Limits on what is not fully charged grow with
// the slots. This is isolation, so it applies even if hygiene is disabled.
func (p *Plan) addLimits(inv *inventory.Inventory) {
	tasks := int64(systemTasks)
	for _, s := range p.Slices {
		if s.Slot >= 0 {
			tasks += s.TasksMax
		}
	}
	const (
		intMax  = 1<<31 - 1
		longMax = 1<<63 - 1
		plenty  = 1 << 40
	)
	shares := int64(8+len(p.Slots)) * 4096
	least := map[string]int64{
		"/proc/sys/fs/aio-max-nr":                 plenty,
		"/proc/sys/fs/epoll/max_user_watches":     plenty,
		"/proc/sys/fs/file-max":                   longMax, // as systemd sets it
		"/proc/sys/fs/inotify/max_user_instances": intMax,
		"/proc/sys/fs/inotify/max_user_watches":   intMax,
		"/proc/sys/fs/pipe-user-pages-soft":       plenty,
		"/proc/sys/kernel/pid_max":                min(2*tasks, 1<<22), // the kernel's maximum
		"/proc/sys/kernel/pty/max":                shares,
		"/proc/sys/kernel/threads-max":            2 * tasks,
		// Only a process's ancestors, and root with CAP_SYS_PTRACE, reach its memory: at 0, a
		// child of a judge could open the judge's /proc/PID/mem. 2 and 3 close more.
		"/proc/sys/kernel/yama/ptrace_scope":          1,
		"/proc/sys/net/ipv4/neigh/default/gc_thresh2": shares / 2,
		"/proc/sys/net/ipv4/neigh/default/gc_thresh3": shares,
		"/proc/sys/net/ipv6/neigh/default/gc_thresh2": shares / 2,
		"/proc/sys/net/ipv6/neigh/default/gc_thresh3": shares,
	}
	for _, f := range inv.Tuning.Files {
		n, ok := least[f.Path]
		if !ok || f.Path == "/proc/sys/fs/pipe-user-pages-soft" && f.Value == "0" { // no limit
			continue
		}
		p.Tunables = append(p.Tunables, Tunable{Name: f.Path, Value: strconv.FormatInt(n, 10), Form: Least})
	}
}
