package plan

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write the golden files again")

// machines caches inventories by the description of their machine: writing a
// machine to disk takes a hundred times as long as planning it.
var machines sync.Map

// readMachine returns what kbnode reads of a machine. A test may change its top level.
func readMachine(t testing.TB, m machinetest.Machine) *inventory.Inventory {
	t.Helper()
	once, _ := machines.LoadOrStore(fmt.Sprintf("%+v", m), sync.OnceValues(func() (*inventory.Inventory, error) {
		return detect.Read(context.WithoutCancel(t.Context()), detect.Options{Root: m.Dir(t)})
	}))
	read, err := once.(func() (*inventory.Inventory, error))()
	must.Do(t, err)
	inv := *read
	inv.GPUs, inv.Disks, inv.Problems = slices.Clone(read.GPUs), slices.Clone(read.Disks), slices.Clone(read.Problems)
	inv.CPU.List, inv.Memory.Nodes = slices.Clone(read.CPU.List), slices.Clone(read.Memory.Nodes)
	return &inv
}

func input(inv *inventory.Inventory, cfg config.Config) Input {
	cfg = cfg.WithDefaults()
	return Input{Inventory: inv, Config: &cfg, Binary: "/usr/local/bin/kbnode", Version: "1.2.3", ConfigText: "# " + Marker + "\nqueue: x\n"}
}

// TestGoldenMachines compares the plan of each published machine: the split in
// full, the node's files and those of the first slot. One machine's golden file has all
// texts; the others have the lines that differ from it.
func TestGoldenMachines(t *testing.T) {
	t.Parallel()
	first := machinetest.B200x8()
	all := build(t, readMachine(t, first), config.Config{Node: "node1"}, nil, false)
	for _, m := range machinetest.Published() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			p, err := Build(input(readMachine(t, m), config.Config{Node: "node1"}))
			var got []byte
			if err != nil {
				got = fmt.Appendf(nil, "refused: %v\n", err)
			} else {
				checkFiles(t, p)
				checkPlan(t, readMachine(t, m), p)
				shown := all.Files
				if m.Name == first.Name {
					shown = nil
				}
				got = txtar.Format(goldenText(p, shown))
			}
			file := filepath.Join("testdata", m.Name+".plan.txtar")
			if *update {
				must.Do(t, os.WriteFile(file, got, 0o644))
			}
			if diff := cmp.Diff(must.Read(t, file), string(got)); diff != "" {
				t.Errorf("plan differs from %s (-want +got); run make golden and review:\n%s", file, diff)
			}
		})
	}
}

// goldenText describes a plan without the lines of files that are also in the same file of shown.
func goldenText(p *Plan, shown []File) *txtar.Archive {
	var b strings.Builder
	for _, s := range p.Slots {
		var gpus []string
		node := -1
		for _, g := range s.GPUs {
			gpus, node = append(gpus, g.PCI), g.NUMANode
		}
		fmt.Fprintf(&b, "%s queue=%s gpu=%s node=%d cpus=%s mems=%s memory=%s disk=%s %s\n", s.Name, s.Queue, strings.Join(gpus, "+"), node, s.CPUs, s.MemoryNodes, config.Size(s.MemoryBytes), config.Size(s.DiskBytes), s.Parked)
	}
	fmt.Fprintf(&b, "reserved cpus=%s memory=%s\n", p.Reserved.CPUs, config.Size(p.Reserved.MemoryBytes))
	for _, w := range p.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, u := range p.Units {
		if u.Slot < 1 {
			fmt.Fprintf(&b, "unit %s enabled=%t active=%t\n", u.Name, u.Enabled, u.Active)
		}
	}
	for _, line := range tunableLines(p.Tunables) {
		fmt.Fprintf(&b, "tunable %s\n", line)
	}
	a := &txtar.Archive{}
	for _, f := range p.Files {
		if f.Slot > p.Slots[0].Index || f.Path == LastPath { // which TestLast reads
			continue
		}
		if f.Path == BindingsPath && shown != nil { // a slot per line
			f.Content = regexp.MustCompile(`\n {6,}|\n {4}\}`).ReplaceAllStringFunc(f.Content, strings.TrimSpace)
		}
		name := fmt.Sprintf("%s %04o %s", f.Path, f.Mode, f.Source)
		if i := slices.IndexFunc(shown, func(o File) bool { return o.Path == f.Path }); i >= 0 && f.Path != BindingsPath {
			o := shown[i]
			f.Content = changedLines(o.Content, f.Content)
			if f.Content == "" && f.Mode == o.Mode && f.Source == o.Source {
				fmt.Fprintf(&b, "also %s\n", f.Path)
				continue
			}
		}
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(f.Content)})
	}
	a.Comment = []byte(b.String())
	return a
}

// changedLines returns the lines of a text that another lacks, with a sign.
func changedLines(before, after string) string {
	var b strings.Builder
	for _, side := range []struct{ sign, text, other string }{{"-", before, after}, {"+", after, before}} {
		count := map[string]int{}
		for line := range strings.Lines(side.other) {
			count[line]++
		}
		for line := range strings.Lines(side.text) {
			count[line]--
			if count[line] < 0 {
				b.WriteString(side.sign + line)
			}
		}
	}
	return b.String()
}

// checkFiles checks what must be true of the files of any plan.
func checkFiles(t *testing.T, p *Plan) {
	t.Helper()
	if p.Reserved.CPUs == "" {
		t.Error("no CPU is reserved")
	}
	if p.Warnings == nil {
		t.Error("warnings are null in JSON, not a list")
	}
	paths := map[string]bool{}
	for _, f := range p.Files {
		if _, ok := Owns(f.Path); !ok && f.Path != AgentCopy {
			t.Errorf("%s is written and not owned: it would never be removed", f.Path)
		}
		if paths[f.Path] {
			t.Errorf("%s is planned twice", f.Path)
		}
		paths[f.Path] = true
		if f.Source == "" && !strings.Contains(f.Content, Marker) && !strings.Contains(strings.ReplaceAll(f.Content, ": ", ":"), `"written_by":"kbnode"`) {
			t.Errorf("%s does not say that kbnode wrote it", f.Path)
		}
		if path.Dir(f.Path) == UnitDir {
			if _, err := unit.DeserializeSections(strings.NewReader(f.Content)); err != nil {
				t.Errorf("unit %s: %v", f.Path, err)
			}
		}
		if f.Mode&0o022 != 0 || f.Owner != "root" {
			t.Errorf("%s has mode %o and owner %s: a job could change it", f.Path, f.Mode, f.Owner)
		}
	}
}

func bindingsOf(t *testing.T, p *Plan) *Bindings {
	t.Helper()
	bindings, err := ParseBindings([]byte(fileOf(p, BindingsPath)))
	must.Do(t, err)
	bindings.Last, err = ParseLast([]byte(fileOf(p, LastPath)))
	must.Do(t, err)
	return bindings
}

func TestLostGPUParksItsSlotAndNoOther(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	before := build(t, inv, config.Config{Queue: "b200"}, nil, false)
	for _, lost := range []int{0, 3, 7} {
		remaining := *inv
		remaining.GPUs = slices.Delete(slices.Clone(inv.GPUs), lost, lost+1)
		in := input(&remaining, config.Config{Queue: "b200"})
		in.Bindings = bindingsOf(t, before)
		after := planned(t, in)
		if len(after.Slots) != 8 {
			t.Fatalf("%d slots, want 8", len(after.Slots))
		}
		for i, s := range after.Slots {
			if i == lost {
				must.Contain(t, s.Parked, "is missing")
				continue
			}
			if diff := cmp.Diff(before.Slots[i], s); diff != "" {
				t.Errorf("slot %s changed: %s", s.Name, diff)
			}
		}
		for _, u := range after.Units {
			if u.Slot >= 0 && u.Active == (u.Slot == lost) {
				t.Errorf("unit %s of slot %d is wanted active=%t with GPU %d gone", u.Name, u.Slot, u.Active, lost)
			}
		}
		// The GPU comes back to its own slot, and the plan is as before.
		in.Inventory, in.Bindings = inv, bindingsOf(t, after)
		back := planned(t, in)
		if diff := cmp.Diff(before, back); diff != "" {
			t.Errorf("the plan with GPU %d back differs: %s", lost, diff)
		}
	}
}

func TestBindings(t *testing.T) {
	t.Parallel()
	gpu := func(uuid, pci string) inventory.GPU {
		return inventory.GPU{Vendor: "nvidia", UUID: uuid, PCI: pci, Healthy: true, NUMANode: 0, MemoryNode: -1}
	}
	binding := func(slot int, uuid, pci string) Binding {
		return Binding{Slot: slot, Member: Member{GPU: slot, UUID: uuid, PCI: pci, Vendor: "nvidia", MemoryNode: -1}}
	}
	for _, tt := range []struct {
		name     string
		gpus     []inventory.GPU
		bindings []Binding
		want     config.GPUs
		count    config.Count
		is       string // slot=uuid, parked slots in brackets
		err      string
	}{
		{name: "new machine", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, is: "0=A 1=B"},
		{name: "moved to another address", gpus: []inventory.GPU{gpu("B", "0"), gpu("A", "1")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "0=A 1=B"},
		{name: "new GPU takes the next free slot", gpus: []inventory.GPU{gpu("N", "0"), gpu("A", "1")}, bindings: []Binding{binding(0, "A", "1")}, is: "0=A 1=N"},
		{name: "new GPU before one that is kept", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, bindings: []Binding{{Slot: 0, Member: binding(1, "B", "1").Member}}, is: "0=B 1=A"},
		{name: "new GPU beside one that is away", gpus: []inventory.GPU{gpu("N", "9")}, bindings: []Binding{binding(0, "A", "0")}, is: "[0=A] 1=N"},
		{name: "moved to the address of one that is away", gpus: []inventory.GPU{gpu("B", "0")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "[0=A] 1=B"},
		{name: "moved there before", gpus: []inventory.GPU{gpu("B", "0")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "0")}, is: "[0=A] 1=B"},
		{name: "cards changed places", gpus: []inventory.GPU{gpu("B", "0"), gpu("A", "1")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "0=A 1=B"},
		{name: "missing GPU keeps its slot", gpus: []inventory.GPU{gpu("B", "1")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "[0=A] 1=B"},
		{name: "all GPUs missing", bindings: []Binding{binding(0, "A", "0")}, is: "[0=A]"},
		{name: "replaced card keeps the slot", gpus: []inventory.GPU{gpu("C", "0"), gpu("B", "1")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "0=C 1=B"},
		{name: "UUID unreadable now", gpus: []inventory.GPU{{Vendor: "nvidia", PCI: "0", Error: "lost"}, gpu("B", "1")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, is: "[0=A] 1=B"},
		{name: "dead from the start", gpus: []inventory.GPU{{Vendor: "nvidia", PCI: "0", Error: "lost"}, gpu("B", "1")}, is: "[0=] 1=B"},
		{name: "chosen by index", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1"), gpu("C", "2")}, want: config.GPUs{List: []string{"2", "0"}}, is: "0=A 2=C"},
		{name: "an index does not shift", gpus: []inventory.GPU{gpu("A", "0"), gpu("C", "2")}, bindings: []Binding{binding(0, "A", "0"), binding(2, "C", "2")}, want: config.GPUs{List: []string{"0", "2"}}, is: "0=A 2=C"},
		{name: "chosen by UUID and address", gpus: []inventory.GPU{gpu("A", "0000:01:00.0"), gpu("B", "0000:02:00.0"), gpu("C", "0000:03:00.0")}, want: config.GPUs{List: []string{"b", "03:00.0"}}, is: "1=B 2=C"},
		{name: "chosen by nvidia-smi's address", gpus: []inventory.GPU{gpu("A", "0000:01:00.0"), gpu("B", "0000:02:00.0")}, want: config.GPUs{List: []string{"00000000:02:00.0"}}, is: "1=B"},
		{name: "the first two", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1"), gpu("C", "2")}, count: 2, is: "0=A 1=B"},
		{name: "no such index", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, want: config.GPUs{List: []string{"9"}}, err: "GPU 9 does not exist: this machine has GPUs 0 to 1"},
		{name: "too many", gpus: []inventory.GPU{gpu("A", "0")}, count: 2, err: "gpu_count: 2 GPUs are requested, but this machine has 1; write at most 1 (--gpu-count)"},
		{name: "as many as chosen", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1"), gpu("C", "2")}, count: 2, want: config.GPUs{List: []string{"2", "b"}}, is: "1=B 2=C"},
		{name: "all, and that many", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, count: 2, want: config.GPUs{All: true}, is: "0=A 1=B"},
		{name: "all, and fewer", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, count: 1, want: config.GPUs{All: true}, err: "gpu_count: 1 and gpus, which lists 2, contradict each other"},
		{name: "fewer than chosen", gpus: []inventory.GPU{gpu("A", "0"), gpu("B", "1")}, count: 1, want: config.GPUs{List: []string{"A", "B"}}, err: "contradict each other"},
		{name: "a negative number", gpus: []inventory.GPU{gpu("A", "0")}, count: -1, err: "gpu_count: -1 GPUs"},
		{name: "the first of which is away", gpus: []inventory.GPU{gpu("B", "1"), gpu("C", "2")}, bindings: []Binding{binding(0, "A", "0"), binding(1, "B", "1")}, count: 2, is: "[0=A] 1=B"},
		{name: "one GPU named twice", gpus: []inventory.GPU{gpu("A", "0")}, want: config.GPUs{List: []string{"0", "A"}}, err: "GPU A is listed twice"},
		{name: "no GPU", err: "no GPU that kbnode can see"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			slots, _, err := bind(tt.gpus, config.Config{GPUs: tt.want, GPUCount: tt.count}, tt.bindings, false, false)
			if tt.err != "" {
				must.Err(t, err, tt.err)
				return
			}
			must.Do(t, err)
			var is []string
			for _, s := range slots {
				text := fmt.Sprintf("%d=%s", s.Index, s.binding().UUID)
				if s.Parked != "" {
					text = "[" + text + "]"
				}
				is = append(is, text)
			}
			must.Equal(t, tt.is, strings.Join(is, " "))
		})
	}
}

// TestAgentConfigKnowsTheAgent checks the configuration against what each version of the agent understands: it silently
// ignores every other key. An agent that does not list its keys gets the same ones.
func TestAgentConfigKnowsTheAgent(t *testing.T) {
	t.Parallel()
	const edge, polling, own = config.DefaultEndpoint, config.PollingEndpoint, "https://bk.example/v3"
	v3 := []string{"cancel-grace-period=30", "signal-grace-period-seconds=25"}
	v4 := []string{"cancel-signal-timeout=25s", "cancel-cleanup-timeout=5s"}
	for _, tt := range []struct {
		version, keys  string // of a recording
		asked, written string // endpoint
		pings          string // ping-mode
		cancel         []string
	}{
		{"3.76.2", "3.76.2", edge, polling, "", v3},
		{"3.76.2", "3.76.2", own, own, "", v3},
		{"3.122.0", "3.138.3", edge, polling, "poll-only", v3},
		{"3.127.2", "3.138.3", own, own, "poll-only", v3},
		{"3.128.0", "3.138.3", edge, edge, "auto", v3},
		{"3.138.3", "3.138.3", edge, edge, "auto", v3},
		{"3.138.3", "3.138.3", own, own, "auto", v3},
		{"3.138.3", "3.138.3", polling, polling, "poll-only", v3},
		{"3.138.3", "3.138.3", polling + "/", polling + "/", "poll-only", v3},
		{"3.138.3", "3.138.3", "https://Agent.Buildkite.com:443/v3", "https://Agent.Buildkite.com:443/v3", "poll-only", v3},
		{"4.0.0-beta.15", "4.0.0-beta.15", edge, edge, "auto", v4},
		{"4.10.1", "4.0.0-beta.15", edge, edge, "auto", v4},
	} {
		t.Run(tt.version+" "+tt.asked, func(t *testing.T) {
			t.Parallel()
			cfg := config.Config{Queue: "test", Agent: config.Agent{Endpoint: tt.asked}}
			agent := inventory.Agent{Version: tt.version, Keys: machinetest.AgentKeys(tt.keys)}
			render := func(agent inventory.Agent) string {
				inv := readMachine(t, machinetest.VM())
				inv.Software.Agent = agent
				p := build(t, inv, cfg, nil, false)
				return fileOf(p, AgentDir(0)+"/buildkite-agent.cfg")
			}
			text := render(agent)
			got := map[string]string{}
			for line := range strings.Lines(text) {
				key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
				if !ok || strings.HasPrefix(line, "#") {
					continue
				}
				if !slices.Contains(agent.Keys, key) {
					t.Errorf("key %s is not known to the agent", key)
				}
				// How the agent reads a value: it has no other escapes.
				got[key] = strings.Trim(value, `"'`)
				if got[key] != value[1:len(value)-1] {
					t.Errorf("of the value of %s the agent takes away a quote: %s", key, value)
				}
			}
			var cancel []string
			for _, key := range []string{"cancel-grace-period", "signal-grace-period-seconds", "cancel-signal-timeout", "cancel-cleanup-timeout"} {
				if v, ok := got[key]; ok {
					cancel = append(cancel, key+"="+v)
				}
			}
			must.Equal(t, tt.cancel, cancel)
			must.Equal(t, tt.written, got["endpoint"])
			must.Equal(t, tt.pings, got["ping-mode"])
			agent.Keys = nil
			must.Equal(t, text, render(agent))
		})
	}
	old := inventory.Agent{Path: "/usr/bin/buildkite-agent", Version: "3.20.0", Keys: []string{"name", "tags", "build-path"}}
	if err := CheckAgent(old); err == nil || !strings.Contains(err.Error(), "does not support") || !strings.Contains(err.Error(), "bootstrap-script") {
		t.Errorf("an agent without the hardening keys: %v", err)
	}
}

func TestJobPolicyChoosesTheGPU(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	uuid := inv.GPUs[0].UUID
	for _, tt := range []struct {
		name   string
		docker inventory.Docker
		want   func(JobPolicy) bool
	}{
		{"CDI names the GPU", inventory.Docker{CDI: true, CDIDevices: []string{"nvidia.com/gpu=" + uuid}, Runtimes: []string{"nvidia"}}, func(p JobPolicy) bool {
			return slices.Equal(p.CDIDevices, []string{"nvidia.com/gpu=" + uuid}) && p.DeviceRequests == nil
		}},
		{"CDI is off", inventory.Docker{CDIDevices: []string{"nvidia.com/gpu=" + uuid}, Runtimes: []string{"nvidia"}}, func(p JobPolicy) bool {
			return slices.Equal(p.DeviceRequests, []string{uuid}) && p.CDIDevices == nil && len(p.DeviceNodes) > 0
		}},
		{"CDI does not know this GPU", inventory.Docker{CDI: true, CDIDevices: []string{"nvidia.com/gpu=0"}, Runtimes: []string{"nvidia"}}, func(p JobPolicy) bool { return slices.Equal(p.DeviceRequests, []string{uuid}) }},
		{"neither", inventory.Docker{}, func(p JobPolicy) bool { return slices.Contains(p.DeviceNodes, "/dev/nvidia0") }},
	} {
		one := *inv
		one.Software.Docker = tt.docker
		p := build(t, &one, config.Config{}, nil, false)
		if pol := policyOf(t, p, 0); !tt.want(pol) {
			t.Errorf("%s: policy is %+v", tt.name, pol)
		}
	}
}

// TestRunner checks that slots get the program for jobs if kbnode contains it.
func TestRunner(t *testing.T) {
	t.Parallel()
	in := input(readMachine(t, machinetest.B200x8()), config.Config{Queue: "b200"})
	for _, digest := range []string{"", "abc"} {
		in.Runner = digest
		p := planned(t, in)
		i := slices.IndexFunc(p.Files, func(f File) bool { return f.Path == RunnerCopy })
		if (i >= 0) != (digest != "") || i >= 0 && p.Files[i].SHA256 != digest {
			t.Errorf("%q: file %d", digest, i)
		}
		for _, f := range p.Files {
			if strings.Contains(f.Content, `"runner"`) != (digest != "" && strings.Contains(f.Content, `"work_root"`)) {
				t.Errorf("%q: %s", digest, f.Path)
			}
		}
	}
}
