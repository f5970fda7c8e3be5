package plan

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

var policyName = regexp.MustCompile(`/policy(\d+)/`)

// tunableLines returns a plan's tunables, with cpufreq's policies in one line.
func tunableLines(list []Tunable) []string {
	lines := []string{}
	var policies []int
	value := ""
	for _, t := range list {
		if m := policyName.FindStringSubmatch(t.Name); m != nil && (value == "" || value == t.Value) {
			n, _ := strconv.Atoi(m[1])
			policies, value = append(policies, n), t.Value
			continue
		}
		line := fmt.Sprintf("%s = %s (%s)", t.Name, t.Value, t.Form)
		if t.Slots != nil {
			line += fmt.Sprint(" while idle: ", t.Slots)
		}
		lines = append(lines, line)
	}
	if policies != nil {
		lines = append(lines, fmt.Sprintf("cpufreq policies %s = %s", cpuset.Of(policies...), value))
	}
	return lines
}

// TestTunables configures what the golden files have by default.
func TestTunables(t *testing.T) {
	t.Parallel()
	const limits = 12 // of a kernel without IPv6
	for _, tt := range []struct {
		name    string
		machine machinetest.Machine
		cfg     config.Config
		want    []string // some of them
		number  int
	}{
		{"disabled", machinetest.B200x8(), config.Config{Hygiene: config.Hygiene{Disabled: true, Clocks: "base"}}, []string{"/proc/sys/kernel/pty/max = 65536 (at-least)"}, limits},
		{
			"clocks", machinetest.B200x8(), config.Config{Hygiene: config.Hygiene{Clocks: "1410"}},
			[]string{"nvml/GPU-29010000-0000-4000-8000-000000000003/clocks = 1410 (word) while idle: [2]"},
			8 + limits + 2*8 + 1,
		},
		{
			"AMD, a pair has two", machinetest.MI210(), config.Config{GPUsPerSlot: 2, Hygiene: config.Hygiene{Clocks: "base"}},
			[]string{"/sys/bus/pci/devices/0000:43:00.0/power_dpm_force_performance_level = high (word) while idle: [0]"},
			8 + limits + 4 + 1,
		},
		{"AMD, where the driver takes no level", machinetest.MI300XCPX(), config.Config{Hygiene: config.Hygiene{Clocks: "base"}}, nil, 8 + limits + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := build(t, readMachine(t, tt.machine), tt.cfg, nil, false)
			got := tunableLines(p.Tunables)
			for _, want := range tt.want {
				if !slices.Contains(got, want) {
					t.Errorf("no %q", want)
				}
			}
			must.Equal(t, tt.number, len(got))
			if t.Failed() {
				t.Log(strings.Join(got, "\n"))
			}
		})
	}
}

// TestNoReservedCPUs advises only what the plan then accepts.
func TestNoReservedCPUs(t *testing.T) {
	t.Parallel()
	no := config.Reserve{CPUs: config.NoThreads}
	some := config.Reserve{CPUs: 1}
	for name, row := range map[string]struct {
		cores   int // of each of two packages
		cfg     config.Config
		advice  string
		advised config.Config
	}{
		"chosen":                       {16, config.Config{Reserve: no}, "set reserve.cpus to 1 or more", config.Config{Reserve: some}},
		"a core for each GPU":          {4, config.Config{}, "choose fewer GPUs with --gpus (gpus)", config.Config{GPUCount: 7}},
		"a core for each GPU, chosen":  {4, config.Config{Reserve: no}, "choose fewer GPUs with --gpus (gpus)", config.Config{GPUCount: 7}},
		"a core for each slot":         {4, config.Config{GPUs: config.GPUs{None: true}, Slots: 8}, "write fewer slots (slots)", config.Config{GPUs: config.GPUs{None: true}, Slots: 7}},
		"slots ask for all":            {16, config.Config{CPUsPerSlot: 8}, "write a smaller cpus_per_slot", config.Config{CPUsPerSlot: 6}},
		"slots ask for all, and it is": {16, config.Config{CPUsPerSlot: 8, Reserve: no}, "write a smaller cpus_per_slot", config.Config{CPUsPerSlot: 6, Reserve: no}},
	} {
		m := machinetest.B200x8()
		m.Packages, m.Nodes, m.Cores, m.Threads, m.CoresPerL3 = 2, 1, row.cores, 2, row.cores
		inv := readMachine(t, m)
		said := func(cfg config.Config) (list []string) {
			p := build(t, inv, cfg, nil, false)
			for _, w := range p.Warnings {
				if strings.HasPrefix(w, "interrupts stay") {
					list = append(list, w)
				}
			}
			return list
		}
		if diff := cmp.Diff([]string{"interrupts stay on the slots' CPUs: no CPUs are reserved for them; " + row.advice}, said(row.cfg)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if again := said(row.advised); again != nil {
			t.Errorf("%s, as advised: %s", name, again)
		}
	}
}

// TestTasksMax warns of slots that together have more tasks than Linux has process IDs.
func TestTasksMax(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.MI300XCPX())
	for _, row := range []struct {
		asked, planned int64
		warned         bool
	}{
		{8192, 8192, false},
		{65408, 65408, false},
		{65409, 65409, true},
		{100_000, 100_000, true},
		{1 << 22, 1 << 22, true},
		{math.MaxInt64, 1 << 22, true},
	} {
		p := build(t, inv, config.Config{Job: config.Job{TasksMax: row.asked}}, nil, false)
		want := "job.tasks_max: all slots together can use up the 4194304 process IDs that Linux has, and leave none for the node; write at most 65408"
		if got := slices.Contains(p.Warnings, want); got != row.warned {
			t.Errorf("%d: %q", row.asked, p.Warnings)
		}
		must.Contain(t, fileOf(p, SlotPolicyPath(63)), fmt.Sprintf(`"pids_limit": %d,`, row.planned))
		must.Contain(t, fileOf(p, UnitDir+"/"+p.Slices[1].Unit), fmt.Sprintf("TasksMax=%d\n", row.planned))
		for _, l := range tunableLines(p.Tunables) {
			if name, value, _ := strings.Cut(l, " = "); row.warned && (name == "/proc/sys/kernel/pid_max" || name == "/proc/sys/kernel/threads-max") {
				must.Equal(t, "4194304 (at-least)", value)
			}
		}
	}
}

// TestLimits raises the limits that slots share, if the kernel has them, and
// nothing that has no limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	files := func(text ...string) (list []inventory.TuningFile) {
		for i := 0; i < len(text); i += 2 {
			list = append(list, inventory.TuningFile{Path: text[i], Value: text[i+1]})
		}
		return list
	}
	for name, row := range map[string]struct {
		files []inventory.TuningFile
		slots int
		want  []string
	}{
		"eight slots": {
			files("/proc/sys/fs/inotify/max_user_instances", "128", "/proc/sys/fs/pipe-user-pages-soft", "16384", "/proc/sys/kernel/pid_max", "32768", "/proc/sys/kernel/pty/max", "4096", "/proc/sys/net/ipv6/neigh/default/gc_thresh3", "1024"), 8,
			[]string{
				"/proc/sys/fs/inotify/max_user_instances = 2147483647 (at-least)", "/proc/sys/fs/pipe-user-pages-soft = 1099511627776 (at-least)", "/proc/sys/kernel/pid_max = 147456 (at-least)",
				"/proc/sys/kernel/pty/max = 65536 (at-least)", "/proc/sys/net/ipv6/neigh/default/gc_thresh3 = 65536 (at-least)",
			},
		},
		"many slots":                 {files("/proc/sys/kernel/pid_max", "32768", "/proc/sys/kernel/pty/max", "4096"), 512, []string{"/proc/sys/kernel/pid_max = 4194304 (at-least)", "/proc/sys/kernel/pty/max = 2129920 (at-least)"}},
		"sockets":                    {files("/proc/sys/net/ipv4/tcp_mem", "188694\t251592\t377388"), 8, []string{"/proc/sys/net/ipv4/tcp_mem = 16777216 16777216 16777216 (at-least)"}},
		"connections without owners": {files("/proc/sys/net/ipv4/tcp_max_orphans", "131072"), 8, []string{"/proc/sys/net/ipv4/tcp_max_orphans = 2147483647 (at-least)"}},
		"Yama":                       {files("/proc/sys/kernel/yama/ptrace_scope", "3"), 8, []string{"/proc/sys/kernel/yama/ptrace_scope = 1 (at-least)"}},
		"no limit, and none of ours": {files("/proc/sys/fs/pipe-user-pages-soft", "0", "/proc/sys/kernel/numa_balancing", "1"), 8, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &Plan{Slots: make([]Slot, row.slots), Slices: []Slice{{Slot: -1}}, Reserved: Reserved{MemoryBytes: 64 << 30}}
			for i := range row.slots {
				p.Slices = append(p.Slices, Slice{Slot: i, TasksMax: 8192})
			}
			p.addLimits(&inventory.Inventory{Tuning: inventory.Tuning{Files: row.files}})
			must.Equal(t, row.want, tunableLines(p.Tunables))
		})
	}
}
