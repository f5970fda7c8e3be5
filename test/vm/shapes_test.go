//go:build vm

package vm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// migLayout leaves GPUs 2, 3, 5, 6 and 7 whole. GPU 1 gives its instances to no one.
var migLayout = []string{"0:4g.90gb,3g.90gb", "1:1g.23gb,1g.23gb,1g.23gb,1g.23gb,1g.23gb,1g.23gb,1g.23gb", "4:3g.90gb,3g.90gb"}

// opening is a job that tries each device node of a GPU that its container has.
const opening = `steps:
  - command: |
      for n in $$(find /dev -type c); do
        case $$n in /dev/nvidia[0-9]*|/dev/nvidia-caps/*|/dev/dri/*|/dev/kfd)
          echo ":: has $$n"; (exec 3<>$$n) 2>&1 | sed "s/^/:: /" ;;
        esac
      done
      env | grep -E "^(NVIDIA|CUDA|ROCR|HIP)_VISIBLE" | sort | sed "s/^/:: env /"
    agents: {queue: shapes, gpu-index: "%d"}
    plugins:
      - docker#v5.11.0:
          image: busybox:test
          %spropagate-environment: true
          environment: [NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES]
`

// allGPUs is the line that pipelines for NVIDIA's GPUs have more than those for AMD's.
const allGPUs = "gpus: all\n          "

// nodesOfGPUs are the device nodes on the host that belong to some GPU, or to all of a vendor's.
const nodesOfGPUs = `find /dev -type c \( -path '/dev/nvidia[0-9]*' -o -path '/dev/nvidia-caps/*' -o -path '/dev/dri/*' -o -path /dev/kfd \) | sort`

func ofGPU(node string) bool {
	return regexp.MustCompile(`^/dev/(nvidia\d+|nvidia-caps/.*|dri/.*|kfd)$`).MatchString(node)
}

// shaped is a node of such a shape with a slot for each part of the GPUs named, and its plan.
func shaped(t *testing.T, m *vm.Machine, gpus string, slots int) plan.Plan {
	t.Helper()
	m.Sh(installShaped + "--gpus " + gpus)
	m.Sh(fmt.Sprintf("bkstub wait-agents --count %d --timeout 5m", slots))
	p := planned(t, m, "")
	if len(p.Slots) != slots {
		t.Fatalf("%d slots, want %d", len(p.Slots), slots)
	}
	table := m.Sh("kbnode status")
	t.Logf("kbnode status:\n%s", table)
	for _, s := range p.Slots {
		if !regexp.MustCompile(`(?m)^\W*` + s.Name + `\b`).MatchString(table) {
			t.Errorf("the table has no line of %s", s.Name)
		}
	}
	for _, s := range status(t, m).Slots {
		if s.Agent != "idle" {
			t.Errorf("agent of %s is %s: %v", s.Slot, s.Agent, s.Problems)
		}
	}
	return p
}

func planned(t *testing.T, m *vm.Machine, flags string) (p plan.Plan) {
	t.Helper()
	must.Do(t, json.Unmarshal([]byte(m.Sh("kbnode plan --json "+flags)), &p))
	return p
}

func readGPUs(t *testing.T, m *vm.Machine) inventory.Inventory {
	t.Helper()
	var inv inventory.Inventory
	must.Do(t, json.Unmarshal([]byte(m.Sh("kbnode inventory --json")), &inv))
	for _, p := range inv.Problems {
		if strings.HasPrefix(p.Subject, "gpu ") || p.Subject == "nvml" {
			t.Errorf("%s: %s", p.Subject, p.Detail)
		}
	}
	return inv
}

// gpuNodes are those of a slot's device nodes that belong to a GPU.
func gpuNodes(s plan.Slot) []string {
	var nodes []string
	for _, g := range s.GPUs {
		nodes = append(nodes, g.Devices...)
	}
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return !ofGPU(n) })
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// answers are what opening said, by device node: bash and ash put the node before it.
func answers(text string) map[string]string {
	said := map[string]string{}
	for _, line := range regexp.MustCompile(`(/dev/[\w/-]+): ([A-Z][\w ]+)`).FindAllStringSubmatch(text, -1) {
		said[line[1]] = strings.TrimSpace(line[2])
	}
	return said
}

// The node is there and has no driver behind it: a process that may open it gets ENXIO, or ENODEV
// where the kernel has DRM.
func mayOpen(said string) bool { return strings.HasPrefix(said, "No such device") }

// visible is how a job on a slot learns of its GPUs.
func visible(s plan.Slot) string {
	switch s.Vendor() {
	case "nvidia":
		return "CUDA_VISIBLE_DEVICES=" + strings.Join(s.Each(plan.SlotGPU.Name), ",")
	case "amd": // the driver hides what the container may not open, and counts the rest
		return "ROCR_VISIBLE_DEVICES=0"
	}
	return "NVIDIA_VISIBLE_DEVICES=void"
}

// onlyTheirs runs a job on each slot, and looks at what it and root in its slice can open.
func onlyTheirs(t *testing.T, m *vm.Machine, p plan.Plan, option string) {
	t.Helper()
	const atOnce = 4 // emulated, the engine takes minutes to start eight
	var jobs []*vm.Process
	var results []vm.Result
	for i, s := range p.Slots {
		if i >= atOnce {
			results = append(results, jobs[i-atOnce].Wait())
		}
		file := fmt.Sprintf("/root/opening-%d.yml", s.Index)
		m.Put(file, 0o600, fmt.Sprintf(opening, s.Index, option))
		jobs = append(jobs, m.Start("bash", "-c", "bkstub submit --queue shapes --wait --steps "+file+" 2>&1"))
	}
	for _, job := range jobs[len(results):] {
		results = append(results, job.Wait())
	}
	all := strings.Fields(m.Sh(nodesOfGPUs))
	for i, s := range p.Slots {
		r, own := results[i], gpuNodes(s)
		log := timestamp.ReplaceAllString(r.Stdout, "")
		var has []string
		for _, mark := range (outcome{log: log}).marks() {
			if node, ok := strings.CutPrefix(mark, "has "); ok {
				has = append(has, node)
			}
		}
		slices.Sort(has)
		said := answers(log)
		if want := visible(s); !strings.Contains(log, ":: env "+want+"\n") {
			t.Errorf("the job on %s has no %s:\n%s", s.Name, want, log)
		}
		if diff := cmp.Diff(own, has); r.Code != 0 || diff != "" {
			t.Errorf("the job on %s ended with %d; its device nodes (-slot's +container's):\n%s\n%s", s.Name, r.Code, diff, log)
		}
		for _, node := range own {
			if !mayOpen(said[node]) {
				t.Errorf("opening %s in the job on %s says %q", node, s.Name, said[node])
			}
		}
	}
	// A privileged container has all of the host's nodes, and root in the slice, too: nothing
	// but the slice is between them and another slot's.
	m.Put("/root/open.sh", 0o755, fmt.Sprintf("for n in %s; do (exec 3<>$n) 2>&1; done; true\n", strings.Join(all, " ")))
	for i, s := range p.Slots {
		own := gpuNodes(s)
		for where, command := range map[string]string{
			"on the host":               "systemd-run -q --wait --pipe --slice buildkite-" + s.Name + ".slice bash /root/open.sh",
			"in a privileged container": "docker run --rm --privileged -v /root/open.sh:/open.sh:ro --cgroup-parent buildkite-" + s.Name + ".slice busybox:test sh /open.sh",
		} {
			if where != "on the host" && i > 0 && i < len(p.Slots)-1 {
				continue // of those in the middle it says nothing that the host's does not
			}
			r := m.Try(command)
			for range 4 { // what ends all that a job left in its slice takes it for that, every 10 s
				if r.Code == 0 {
					break
				}
				r = m.Try(command)
			}
			if r.Code != 0 {
				t.Fatalf("%s: exit %d\n%s", command, r.Code, r.Stdout)
			}
			said := answers(r.Stdout)
			for _, node := range all {
				if mine := slices.Contains(own, node); mine && !mayOpen(said[node]) || !mine && said[node] != "Operation not permitted" {
					t.Errorf("opening %s %s in the slice of %s says %q; the slot's are %v", node, where, s.Name, said[node], own)
				}
			}
		}
	}
}

// TestShapes makes slots of parts of GPUs, and of AMD's.
func TestShapes(t *testing.T) {
	t.Run("mig", func(t *testing.T) {
		t.Parallel()
		m := forked(t)
		m.MIG(migLayout...)
		inv := readGPUs(t, m)
		var parts []string
		for _, g := range inv.GPUs {
			for _, in := range g.MIG {
				parts = append(parts, fmt.Sprintf("%d %s", g.Minor, in.Profile))
				m.Sh(fmt.Sprintf("test -c /dev/nvidia-caps/nvidia-cap%d -a -c /dev/nvidia-caps/nvidia-cap%d", in.GPUCap, in.ComputeCap))
			}
		}
		want := []string{"0 4g.90gb", "0 3g.90gb"}
		for range 7 {
			want = append(want, "1 1g.23gb")
		}
		if diff := cmp.Diff(append(want, "4 3g.90gb", "4 3g.90gb"), parts); diff != "" {
			t.Fatalf("instances (-want +got):\n%s", diff)
		}
		p := shaped(t, m, "0,4,5", 5)
		onlyTheirs(t, m, p, allGPUs)
		nodes := map[string]string{}
		for i, s := range p.Slots {
			caps := slices.DeleteFunc(gpuNodes(s), func(n string) bool { return !strings.HasPrefix(n, "/dev/nvidia-caps/") })
			if want := map[bool]int{true: 2, false: 0}[i < 4]; len(caps) != want {
				t.Errorf("%s has the capabilities %v, want %d", s.Name, caps, want)
			}
			for _, n := range caps {
				if nodes[n] != "" {
					t.Errorf("%s and %s both have %s", s.Name, nodes[n], n)
				}
				nodes[n] = s.Name
			}
		}

		// Instances made again in the same places have other UUIDs, and are the same slots.
		m.MIG(migLayout...)
		m.Sh("kbnode reconcile; bkstub wait-agents --count 5 --timeout 3m")
		anew := planned(t, m, "")
		for i, s := range p.Slots {
			if i >= len(anew.Slots) || anew.Slots[i].Name != s.Name || anew.Slots[i].CPUs != s.CPUs || !slices.Equal(gpuNodes(anew.Slots[i]), gpuNodes(s)) {
				t.Fatalf("slots after the instances were made anew: %+v", anew.Slots)
			}
		}
		onlyTheirs(t, m, plan.Plan{Slots: anew.Slots[:1]}, allGPUs)

		divideAnew(t, m, p)
	})
	t.Run("groups", func(t *testing.T) {
		t.Parallel()
		groupsOfGPUs(t, forked(t))
	})
	t.Run("cpx", func(t *testing.T) {
		t.Parallel()
		m := forked(t)
		m.CPX()
		amdIs(t, m, 64)
		// Ten cores are too few for 64 slots; the server that has so many GPUs has more.
		if r := m.Try("kbnode plan --queue shapes"); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "its own core") {
			t.Errorf("64 slots on ten cores: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		var capture bytes.Buffer
		must.Do(t, detect.Capture(t.Context(), detect.Options{Root: machinetest.MI300XCPX().Dir(t)}, &capture))
		m.Put("/root/server.txtar", 0o600, capture.String())
		all := planned(t, m, "--queue shapes --root /root/server.txtar")
		distinct := map[string]bool{}
		for _, s := range all.Slots {
			distinct[strings.Join(gpuNodes(s), " ")] = true
		}
		if len(all.Slots) != 64 || len(distinct) != 64 {
			t.Errorf("the plan of a server with 64 partitions has %d slots with %d different GPUs", len(all.Slots), len(distinct))
		}
		p := shaped(t, m, "0", 8)
		onlyTheirs(t, m, p, "")
		loseAMD(t, m, p, "0000:21:00.0")
	})
}

// amdIs holds what is read of AMD's GPUs to what was put there, and that there is nothing of
// NVIDIA's.
func amdIs(t *testing.T, m *vm.Machine, parts int) {
	t.Helper()
	inv := readGPUs(t, m)
	if inv.NVIDIA != nil || inv.AMD == nil || len(inv.GPUs) != parts {
		t.Fatalf("%d GPUs, want %d; NVIDIA's driver: %+v", len(inv.GPUs), parts, inv.NVIDIA)
	}
	identities, script, nodes := map[string]bool{}, "", ""
	for _, g := range inv.GPUs {
		identities[fmt.Sprintf("%s/%d", g.UUID, g.Partition)] = true
		script += fmt.Sprintf("test -c /dev/dri/renderD%d; cat /sys/bus/pci/devices/%s/numa_node\n", g.RenderMinor, g.PCI)
		nodes += fmt.Sprintf("%d\n", g.NUMANode)
	}
	must.Equal(t, parts, len(identities))
	must.Equal(t, strings.TrimSpace(nodes), m.Sh(script))
}
