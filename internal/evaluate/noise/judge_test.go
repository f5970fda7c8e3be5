package noise

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	quiet := func() Record {
		return Record{
			Seconds: 60,
			GPU: GPU{Samples: 60, Busy: 40, Clock: &Spread{1800, 1965, 1980}, LowClock: 1, Margin: new(20),
				Reasons: map[string]int{"gpu_idle": 20, "sw_power_cap": 30, "applications_clocks_setting": 60, "0x200": 1}},
			CPU:      CPU{Slot: new(90.0), Others: new(5.0), Steal: new(1.0), Throttled: new(1.0)},
			Pressure: Pressure{CPU: new(25.0), Memory: new(5.0), IO: new(25.0)},
			Memory:   Memory{Kills: new(0)},
		}
	}
	for _, row := range []struct {
		name   string
		change func(*Record)
		want   []string
	}{
		{"quiet, at its power limit", func(*Record) {}, nil},
		{"nothing is known", func(r *Record) { *r = Record{Seconds: 60} }, nil},
		{"a partition", func(r *Record) { r.SharedGPU = "CPX" }, []string{"the slot has part of a GPU (CPX): jobs on the other parts share its power, heat and memory system, and the samples cover the whole GPU"}},
		{"hardware slowdown", func(r *Record) { r.GPU.Reasons["hw_slowdown"] = 1 }, []string{"hw_slowdown: the hardware slowed the GPU down in 1 of 60 samples"}},
		{"heat, by the driver", func(r *Record) { r.GPU.Reasons["sw_thermal_slowdown"] = 2 }, []string{"sw_thermal_slowdown: the driver slowed the GPU down because it was too hot, in 2 of 60 samples"}},
		{
			"heat and power brake", func(r *Record) {
				r.GPU.Reasons["hw_power_brake_slowdown"], r.GPU.Reasons["hw_thermal_slowdown"] = 3, 4
			},
			[]string{
				"hw_thermal_slowdown: the hardware slowed the GPU down because it was too hot, in 4 of 60 samples",
				"hw_power_brake_slowdown: the power supply slowed the GPU down (power brake) in 3 of 60 samples",
			},
		},
		{"a clock that fell", func(r *Record) { r.GPU.LowClock, r.GPU.Clock.Min = 2, 1200 }, []string{"the GPU's clock fell to 1200 MHz, with a median of 1965 MHz; it was below 75 % of that in 2 of 40 samples"}},
		{"hot", func(r *Record) { r.GPU.Margin = new(5) }, []string{"the GPU was hot: its margin to the slowdown temperature was 5 °C"}},
		{"others on its CPUs", func(r *Record) { r.CPU.Others = new(5.01) }, []string{"processes outside the slot used 5.01 % of its CPUs' time; more than 5 % is noise"}},
		{"a hypervisor", func(r *Record) { r.CPU.Steal = new(1.5) }, []string{"the hypervisor took 1.5 % of the CPUs' time; more than 1 % is noise"}},
		{"a quota", func(r *Record) { r.CPU.Throttled = new(2.0) }, []string{"the slot's CPU quota throttled it for 2 % of the time; more than 1 % is noise"}},
		{
			"pressure", func(r *Record) { r.Pressure = Pressure{new(25.1), new(5.1), new(25.1)} },
			[]string{
				"tasks of the slot waited for a CPU for 25.1 % of the time; more than 25 % is noise",
				"tasks of the slot waited for memory for 5.1 % of the time; more than 5 % is noise",
				"tasks of the slot waited for the disk for 25.1 % of the time; more than 25 % is noise",
			},
		},
		{"out of memory", func(r *Record) { r.Memory.Kills = new(2) }, []string{"the slot ran out of memory and 2 of its processes were killed"}},
		{
			"too short for rates, not for the GPU", func(r *Record) {
				r.Seconds, r.CPU.Others, r.Pressure.CPU = 1.9, new(90.0), new(90.0)
				r.GPU.Reasons["hw_slowdown"] = 1
			},
			[]string{"hw_slowdown: the hardware slowed the GPU down in 1 of 60 samples"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := quiet()
			row.change(&r)
			noisy, why := Judge(r)
			must.Equal(t, row.want, why)
			if noisy != (len(row.want) > 0) {
				t.Errorf("noisy is %t", noisy)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	r := Record{Seconds: 1, GPU: GPU{Samples: 9, Reasons: map[string]int{"sw_power_cap": 4}, Error: "not sampled: x"}}
	want := []string{
		"sw_power_cap: the GPU was at its power limit in 4 of 9 samples",
		"gpu: not sampled: x",
		"the job was shorter than 2 s, so CPUs and pressure were not judged",
		"the kernel does not report pressure (needs psi=1 on its command line)",
	}
	must.Equal(t, want, notes(r))
	if all := notes(Record{Seconds: 60, Pressure: Pressure{CPU: new(0.0)}}); len(all) > 0 {
		t.Errorf("of a quiet job: %s", strings.Join(all, "; "))
	}
}

func TestNodeProtection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Protection
	}{
		{"all", map[string]string{"osrelease": "6.12.0-13-amd64\n", "yama/ptrace_scope": "1\n", "seccomp/actions_avail": "errno\n"},
			Protection{Kernel: "6.12.0-13-amd64", Ptrace: new(1), Seccomp: new(true)}},
		{"neither Yama nor seccomp", map[string]string{"osrelease": "5.10.0\n"}, Protection{Kernel: "5.10.0", Seccomp: new(false)}},
		{"garbage", map[string]string{"osrelease": "x\n", "yama/ptrace_scope": "?\n", "seccomp/actions_avail": ""}, Protection{Kernel: "x", Seccomp: new(true)}},
		{"nothing", nil, Protection{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proc := t.TempDir()
			for name, text := range tt.files {
				must.Write(t, proc, "sys/kernel/"+name, text)
			}
			got := NodeProtection(proc)
			got.Landlock = nil // of the kernel that runs this test
			must.Equal(t, tt.want, got)
		})
	}
}

func TestReadContainer(t *testing.T) {
	t.Parallel()
	const init = "Name:\tUid: 0\nUid:\t1000\t1001\t0\t0\nNSpid:\t70\t1\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"
	full := Container{UID: new(1001), Capabilities: "0000000000000000", NoNew: new(false), Seccomp: new(false), PIDs: new(true)}
	for _, tt := range []struct {
		name, procs string
		status      map[string]string
		want        Container
	}{
		{"the first process", "70\n", map[string]string{"70": init}, full},
		{"behind others", "69\n71\n70\n", map[string]string{"71": "Uid:\t0\t0\t0\t0\nNSpid:\t71\t2\nSeccomp:\t2\n", "70": init}, full},
		{"before that of a namespace in the container", "71\n70\n", map[string]string{"71": "Uid:\t0\t0\t0\t0\nNSpid:\t71\t2\t1\nSeccomp:\t2\n", "70": init}, full},
		{"in the node's namespace", "70\n", map[string]string{"70": "Uid:\t0\nNSpid:\t70\nSeccomp:\t2\n"}, Container{Error: "its first process was not found"}},
		{"a value that is none", "70\n", map[string]string{"70": "Uid:\tx\nNSpid:\t70\t1\nSeccomp:\t1\n"}, Container{Seccomp: new(false), PIDs: new(true)}},
		{"ended", "70\n71\n", map[string]string{"71": "NSpid:\t71\t2\n"}, Container{Error: "its first process was not found"}},
		{"an empty status", "70\n", map[string]string{"70": ""}, Container{Error: "its first process was not found"}},
		{"no cgroup", "", nil, Container{Error: "it had ended"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if tt.procs != "" {
				must.Write(t, dir, "cgroup.procs", tt.procs)
			}
			for pid, status := range tt.status {
				must.Write(t, dir, pid+"/status", status)
			}
			must.Equal(t, tt.want, ReadContainer(dir, dir))
		})
	}
}

// TestPage checks that the example in docs/results.md is judged as it says. internal/cli compares its fields.
func TestPage(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../../docs/results.md")
	m := regexp.MustCompile("(?s)\n## node.json\n.*?```json\n(.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("no example")
	}
	var rec Record
	must.Do(t, json.Unmarshal([]byte(m[1]), &rec))
	again := rec
	again.Schema = Schema
	again.Noisy, again.Why = Judge(rec)
	again.Notes = notes(rec)
	must.Equal(t, again, rec)
}
