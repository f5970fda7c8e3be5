package plan

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// tree is a machine's files for a test to break and restore.
type tree struct {
	t    *testing.T
	root string
}

// edit changes what a JSON file says. It returns a function that restores the file.
func (m tree) edit(name string, change func(map[string]any)) func() {
	m.t.Helper()
	was := must.Read(m.t, filepath.Join(m.root, name))
	var v map[string]any
	must.Do(m.t, json.Unmarshal([]byte(was), &v))
	change(v)
	text, err := json.Marshal(v)
	must.Do(m.t, err)
	must.Write(m.t, m.root, name, string(text))
	return func() { must.Write(m.t, m.root, name, was) }
}

// broken makes a file or directory impossible to open. It returns a function that
// restores it.
func (m tree) broken(name string) func() {
	m.t.Helper()
	path, aside := filepath.Join(m.root, name), filepath.Join(m.root, "aside")
	must.Do(m.t, os.Rename(path, aside))
	if err := os.Symlink(filepath.Base(path), path); err != nil { // to itself
		m.t.Fatal(err)
	}
	return func() {
		must.Do(m.t, os.Remove(path))
		must.Do(m.t, os.Rename(aside, path))
	}
}

func object(v any) map[string]any { return v.(map[string]any) }

// silenced edits live.json as if a subject could not be asked.
func silenced(subject, detail string, change func(live map[string]any)) func(m tree) func() {
	return func(m tree) func() {
		return m.edit("kbnode/live.json", func(live map[string]any) {
			change(live)
			live["problems"] = []any{map[string]any{"subject": subject, "detail": detail}}
		})
	}
}

func file(name string) func(m tree) func() { return func(m tree) func() { return m.broken(name) } }

// nvmlGPU changes what NVML reports about the first GPU.
func nvmlGPU(change func(gpu map[string]any)) func(m tree) func() {
	return func(m tree) func() {
		return m.edit("kbnode/nvml.json", func(v map[string]any) { change(object(v["gpus"].([]any)[0])) })
	}
}

// hang has the driver hang on the first GPU, before or after NVML tells its address.
func hang(address bool) func(m tree) func() {
	return func(m tree) func() {
		return m.edit("kbnode/nvml.json", func(v map[string]any) {
			gpus := v["gpus"].([]any)
			hung := map[string]any{"index": object(gpus[0])["index"]}
			if address {
				hung["pci"] = object(gpus[0])["pci"]
			}
			v["gpus"], v["hung"] = gpus[1:], []any{hung}
		})
	}
}

// TestUnread takes one fact after another from machines that are nodes. What cannot be
// read stays as last planned: nothing changes, and a warning says so. A machine that is
// not a node yet is refused if the fact is essential (first), and planned otherwise.
func TestUnread(t *testing.T) {
	t.Parallel()
	type damage struct {
		do    func(m tree) func()
		said  string // in a warning
		first string // in the refusal of a first install; "" if there is none
	}
	const noCPUs = "the machine cannot be split"
	software := map[string]damage{
		"the agent's version": {silenced("buildkite-agent", "signal: killed", func(live map[string]any) {
			object(live["software"])["agent"] = map[string]any{"path": "/usr/bin/buildkite-agent"}
		}), "buildkite-agent: could not be read", "/usr/bin/buildkite-agent does not report its version (signal: killed)"},
		"the agent's keys": {silenced("buildkite-agent", "signal: killed", func(live map[string]any) {
			object(live["software"])["agent"] = map[string]any{"path": "/usr/bin/buildkite-agent", "version": "4.1.0"}
		}), "buildkite-agent: could not be read", "/usr/bin/buildkite-agent does not report its version"},
		"Docker": {silenced("docker", "timeout", func(live map[string]any) { delete(object(live["software"]), "docker") }), "docker: could not be read", ""},
		"systemd": {silenced("systemd", "timeout", func(live map[string]any) { delete(object(live["software"]), "systemd") }),
			"systemd: could not be read", ""},
		"the size of the disk": {silenced("disk "+agentsDir, "input/output error", func(live map[string]any) { delete(live, "disks") }),
			"disk " + agentsDir + ": could not be read", "the size of " + agentsDir + " could not be read (input/output error)"},
		"the host's name": {silenced("hostname", "input/output error", func(live map[string]any) { delete(live, "hostname") }),
			"hostname: could not be read", "the host name could not be read"},
	}
	topology := map[string]damage{}
	for _, name := range []string{
		"sys/devices/system/cpu/online", "sys/devices/system/cpu/cpu1/online", "sys/devices/system/cpu/cpu5/topology/core_cpus_list",
		"sys/devices/system/cpu/cpu9/topology/physical_package_id", "sys/devices/system/cpu/cpu3/topology/die_id",
		"sys/devices/system/cpu/cpu3/topology", "sys/fs/cgroup/cpuset.cpus.effective", "proc/cpuinfo",
	} {
		topology[name] = damage{file(name), "cpu: could not be read", noCPUs}
	}
	for _, name := range []string{"proc/meminfo", "sys/devices/system/node/node1/meminfo", "sys/devices/system/node/node0/cpulist", "sys/devices/system/node/node0/distance"} {
		topology[name] = damage{file(name), "memory: could not be read", noCPUs}
	}
	gpu := "sys/bus/pci/devices/0000:1b:00.0/"
	undivided := "could not be read, so it cannot become a slot"
	nvidia := map[string]damage{
		"NVML": {func(m tree) func() {
			return m.edit("kbnode/nvml.json", func(v map[string]any) {
				clear(v)
				maps.Copy(v, map[string]any{"schema": 1, "ok": false, "code": 10, "error": "Timeout", "gpus": []any{}})
			})
		}, "nvml: could not be read", undivided},
		"NVML's report":                          {file("kbnode/nvml.json"), "nvml: could not be read", undivided},
		"one GPU that hangs":                     {hang(true), "gpu 0000:1b:00.0: could not be read", undivided},
		"one GPU that hangs, before its address": {hang(false), "gpu 0000:1b:00.0: could not be read", undivided},
		"the MIG mode of one GPU": {nvmlGPU(func(g map[string]any) {
			delete(g, "mig_mode")
			delete(g, "mig")
			g["unread"] = []any{"nvmlDeviceGetMigMode: Unknown Error"}
		}), "", undivided},
		"one MIG instance": {nvmlGPU(func(g map[string]any) {
			g["mig"].([]any)[2] = map[string]any{"uuid": "", "error": "nvmlDeviceGetUUID: Unknown Error"}
		}), "", undivided},
		"the profile of a MIG instance": {nvmlGPU(func(g map[string]any) {
			in := object(g["mig"].([]any)[2])
			delete(in, "name")
			delete(in, "slices")
			in["error"] = "nvmlDeviceGetName: Unknown Error"
		}), "", undivided},
		"where a MIG instance is": {nvmlGPU(func(g map[string]any) {
			delete(object(g["mig"].([]any)[2]), "start")
			g["unread"] = []any{"nvmlDeviceGetGpuInstanceById: Unknown Error"}
		}), "", undivided},
		"the MIG capabilities":        {file("proc/driver/nvidia-caps/mig-minors"), "driver: could not be read", ""},
		"the driver's version":        {file("proc/driver/nvidia/version"), "driver: could not be read", ""},
		"a GPU's PCI class":           {file(gpu + "class"), "gpu 0000:1b:00.0: could not be read", undivided},
		"the list of PCI devices":     {file("sys/bus/pci/devices"), "gpus: could not be read", "the list of GPUs could not be read"},
		"what the driver says of one": {file("proc/driver/nvidia/gpus/0000:1b:00.0/information"), "gpu 0000:1b:00.0: could not be read", undivided},
		"a GPU's NUMA node":           {file(gpu + "numa_node"), "gpu 0000:1b:00.0: could not be read", undivided},
	}
	amd := map[string]damage{}
	for _, name := range []string{"sys/class/kfd/kfd/topology/nodes/3/properties", "sys/class/kfd/kfd/topology/nodes"} {
		amd[name] = damage{file(name), "gpus: could not be read", "the list of GPUs could not be read"}
	}
	amdGPU := "sys/bus/pci/devices/" + machinetest.MI300XCPX().AMD[1].PCI + "/"
	for _, name := range []string{"current_compute_partition", "vendor", "class", "unique_id", "numa_node"} {
		amd[amdGPU+name] = damage{file(amdGPU + name), "gpu " + machinetest.MI300XCPX().AMD[1].PCI + ": could not be read", "could not be read"}
	}
	join := func(all ...map[string]damage) map[string]damage {
		out := map[string]damage{}
		for _, m := range all {
			maps.Copy(out, m)
		}
		return out
	}
	small := machinetest.B200MIG() // small, to read it a hundred times
	small.NVIDIA, small.Cores = small.NVIDIA[:2], 20
	parts, whole := machinetest.MI300XCPX(), machinetest.MI300X()
	parts.AMD, parts.Cores, whole.AMD, whole.Cores = parts.AMD[:2], 20, whole.AMD[:2], 20
	for _, tt := range []struct {
		machine machinetest.Machine
		damages map[string]damage
	}{
		{small, join(software, topology, nvidia)},
		{parts, amd},
		{whole, amd},
	} {
		t.Run(tt.machine.Name, func(t *testing.T) {
			t.Parallel()
			m := tree{t, tt.machine.Dir(t)}
			m.edit("kbnode/live.json", func(live map[string]any) { live["hostname"] = "node7" })
			build := func(bindings *Bindings) (*Plan, error) {
				inv, err := detect.Read(t.Context(), detect.Options{Root: m.root})
				if err != nil {
					return nil, err
				}
				in := input(inv, config.Config{Queue: "q"})
				in.Bindings, in.Reshape = bindings, true // as install does, at every play of a role
				return Build(in)
			}
			before, err := build(nil)
			must.Do(t, err)
			bindings := bindingsOf(t, before)
			for _, name := range slices.Sorted(maps.Keys(tt.damages)) {
				d := tt.damages[name]
				restore := d.do(m)
				after, err := build(bindings)
				switch {
				case err != nil:
					t.Errorf("%s: %v", name, err)
				default:
					same := cmp.Options{
						cmpopts.IgnoreFields(Plan{}, "Warnings"), cmpopts.IgnoreFields(Reserved{}, "MemoryBytes"),
						cmp.FilterPath(func(p cmp.Path) bool { return strings.Contains(p.GoString(), "Files") }, cmp.Comparer(func(a, b File) bool {
							a.ModeOnly, a.Source, b.ModeOnly, b.Source = false, "", false, "" // where its text comes from
							return a == b
						})),
					}
					if diff := cmp.Diff(before, after, same); diff != "" {
						t.Errorf("%s changes the plan: %s", name, diff)
					}
					if d.said != "" && !slices.ContainsFunc(after.Warnings, func(w string) bool { return strings.HasPrefix(w, d.said) }) {
						t.Errorf("%s: %q is not among the warnings %q", name, d.said, after.Warnings)
					}
				}
				switch _, err := build(nil); {
				case err == nil && d.first != "" || err != nil && (d.first == "" || !strings.Contains(err.Error(), d.first)):
					t.Errorf("%s on a new machine: %v, want %q", name, err, d.first)
				}
				restore()
			}
			after, err := build(bindings)
			must.Do(t, err)
			must.Equal(t, before, after)
		})
	}
}
