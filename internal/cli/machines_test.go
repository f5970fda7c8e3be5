package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// machinesDir has the recorded machines that people try kbnode on.
const machinesDir = "../../examples/machines"

// maxExample bounds a recorded machine, in bytes: people read them.
const maxExample = 90_000

// recorded is a machine of machinesDir.
type recorded struct {
	name, about string
	machine     machinetest.Machine
	node        bool                                    // it is set up: its configuration and its slots are recorded, too
	fault       func(r *nvml.Report, live *detect.Live) // what is wrong with it after that
}

func exampleMachines() []recorded {
	b200, gb200 := withoutGovernors(machinetest.B200x8()), machinetest.GB200()
	for _, gpus := range [][]machinetest.NVIDIA{b200.NVIDIA, gb200.NVIDIA} {
		for i := range gpus {
			gpus[i].Links = []int{} // none but to the switches; with links, NVML answers
		}
	}
	mi300x := withoutGovernors(machinetest.MI300X())
	mig := machinetest.VMNodes()
	mig.NVIDIA[0].MIG = []machinetest.MIG{
		{Profile: "2g.24gb", ProfileID: 14, GPUInstance: 3, Start: 0, Size: 2, Slices: 2, SMs: 32, MiB: 23552},
		{Profile: "2g.24gb", ProfileID: 14, GPUInstance: 4, Start: 2, Size: 2, Slices: 2, SMs: 32, MiB: 23552},
		{Profile: "3g.47gb", ProfileID: 9, GPUInstance: 1, Start: 4, Size: 4, Slices: 3, SMs: 60, MiB: 47104},
	}
	mig.Live = machinetest.Live(mig)
	return []recorded{
		{name: "b200x8", about: "A DGX B200, set up as a node.", machine: b200, node: true},
		{name: "b200-faults", about: "A DGX B200, set up as a node, with five faults.", machine: b200, node: true, fault: faults},
		{name: "mi300x8", about: "A server with eight MI300X, before kbnode install.", machine: mi300x},
		{name: "gb200", about: "A compute tray with two Grace and four Blackwell, before kbnode install.", machine: gb200},
		{name: "h100-mig", about: "A virtual machine with an H100 in three MIG instances, before kbnode install.", machine: mig},
	}
}

// withoutGovernors leaves out the frequency policy of each CPU, which is half of a large machine's files.
func withoutGovernors(m machinetest.Machine) machinetest.Machine {
	m.Files = maps.Clone(m.Files)
	maps.DeleteFunc(m.Files, func(name, _ string) bool { return strings.Contains(name, "/cpufreq/") })
	return m
}

func faults(r *nvml.Report, live *detect.Live) {
	lost, low := &r.GPUs[2], uint32(700_000)
	*lost = nvml.GPU{Index: lost.Index, UUID: lost.UUID, PCI: lost.PCI, Minor: lost.Minor, Error: "GPU is lost", Code: nvml.CodeLost}
	r.GPUs[4].RemappedRows = &nvml.Remapped{Uncorrectable: 3, Failed: true}
	r.GPUs[5].ComputeMode = "exclusive process"
	r.GPUs[6].Power = &nvml.Power{Limit: &low, Enforced: &low, Default: r.GPUs[6].Power.Default}
	live.Software.Docker.CgroupDriver = "cgroupfs"
}

// changeJSON changes a JSON file.
func changeJSON[T any](t *testing.T, dir, name string, f func(*T)) {
	t.Helper()
	var v T
	must.Do(t, json.Unmarshal([]byte(must.Read(t, filepath.Join(dir, name))), &v))
	f(&v)
	text, err := json.MarshalIndent(v, "", "\t")
	must.Do(t, err)
	must.Write(t, dir, name, string(text))
}

// record returns the file of an example.
func (e recorded) record(t *testing.T) string {
	t.Helper()
	dir := e.machine.Dir(t)
	var added []txtar.File
	if e.node {
		changeJSON(t, dir, "kbnode/nvml.json", func(r *nvml.Report) {
			for i := range r.GPUs {
				watts, fastest := uint32(1_000_000), uint32(1965)
				r.GPUs[i].Power = &nvml.Power{Limit: &watts, Enforced: &watts, Default: &watts}
				r.GPUs[i].Clocks = &nvml.Clocks{MaxSM: &fastest}
			}
		})
		config := "node: example\nqueue: b200\n"
		must.Write(t, dir, plan.ConfigPath, config)
		p := planned(t, "--root", dir)
		i := slices.IndexFunc(p.Files, func(f plan.File) bool { return f.Path == plan.BindingsPath })
		added = []txtar.File{{Name: plan.ConfigPath[1:], Data: []byte(config)}, {Name: plan.BindingsPath[1:], Data: []byte(p.Files[i].Content)}}
	}
	if e.fault != nil {
		changeJSON(t, dir, "kbnode/nvml.json", func(r *nvml.Report) {
			changeJSON(t, dir, "kbnode/live.json", func(live *detect.Live) { e.fault(r, live) })
		})
	}
	archive := txtar.Parse([]byte(kbnode(t, "inventory", "--root", dir, "--capture", "-").out))
	archive.Comment = []byte(e.about + " Simulated from published facts.\n\n\tkbnode plan --root " + e.name + ".txtar\n\n")
	archive.Files = append(archive.Files, added...)
	return string(txtar.Format(archive))
}

// changeList matches what kbnode plan lists below the number of changes.
var changeList = regexp.MustCompile(`(?s)(\n\d+ changes:\n).*`)

// TestExampleMachines compares the recorded machines with their descriptions, and what kbnode says of each with a
// golden file.
func TestExampleMachines(t *testing.T) {
	var said strings.Builder
	for _, e := range exampleMachines() {
		file := filepath.Join(machinesDir, e.name+".txtar")
		if text := e.record(t); len(text) > maxExample {
			t.Errorf("%s: %d bytes, at most %d are to read", file, len(text), maxExample)
		} else {
			must.Golden(t, file, *update, text)
		}
		for _, command := range []string{"plan", "status", "doctor"} {
			got := kbnode(t, command, "--root", file)
			out := changeList.ReplaceAllString(got.out, "$1  …\n") // on a machine that is no node yet, all that there is
			fmt.Fprintf(&said, "$ kbnode %s --root %s\n%s%sexit code %d\n\n", command, filepath.Base(file), out, got.err, got.code)
		}
	}
	golden(t, "machines.txt", said.String())
	entries, err := os.ReadDir(machinesDir)
	must.Do(t, err)
	if len(entries) != len(exampleMachines())+1 { // and their page
		t.Errorf("%d files in %s", len(entries), machinesDir)
	}
}
