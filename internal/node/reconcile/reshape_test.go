package reconcile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// server is a machine with eight GPUs and real plans.
type server struct {
	*machine
	net *fakeNetwork
	inv *inventory.Inventory
}

var b200x8 = struct {
	sync.Mutex
	inv *inventory.Inventory
}{}

func newServer(t testing.TB) *server {
	t.Helper()
	b200x8.Lock()
	defer b200x8.Unlock()
	if b200x8.inv == nil {
		inv, err := detect.Read(t.Context(), detect.Options{Root: machinetest.B200x8().Dir(t)})
		must.Do(t, err)
		b200x8.inv = inv
	}
	inv := *b200x8.inv
	inv.GPUs = slices.Clone(inv.GPUs)
	inv.Software.Agent.Path = "" // the tree has none to copy
	root := must.MemoryDir(t)
	sd, err := systemdtest.New(root, "0-223", "0-1")
	must.Do(t, err)
	users := systemdtest.Users{Root: root}
	n := &fakeNetwork{users: users}
	return &server{&machine{t: t, sd: sd, h: &reconcile.Host{Root: root, Systemd: sd, Users: users, Network: n}}, n, &inv}
}

// divide makes MIG instances of a GPU, of one memory slice each; 0 turns MIG off. Their
// UUIDs contain the serial, so that instances made again have others.
func (s *server) divide(gpu, instances, serial int) {
	g := &s.inv.GPUs[gpu]
	g.MIG, g.MIGMode = nil, "off"
	for i := range instances {
		g.MIGMode = "on"
		g.MIG = append(g.MIG, inventory.MIG{
			UUID: fmt.Sprintf("MIG-%d-%d-%d", gpu, i, serial), Profile: "1g.23gb", GPUInstance: 7 + i, Slices: 1, MemorySlices: 1, Start: i,
			GPUCap: 100*gpu + 9*i + 3, ComputeCap: 100*gpu + 9*i + 4,
		})
	}
}

// plan returns what kbnode plans with the bindings on the machine.
func (s *server) plan(cfg config.Config) *plan.Plan {
	s.t.Helper()
	cfg = cfg.WithDefaults()
	in := plan.Input{Inventory: s.inv, Config: &cfg, Binary: "/usr/local/bin/kbnode", Version: "1.2.3", Reshape: true}
	text, err := os.ReadFile(filepath.Join(s.h.Root, plan.BindingsPath))
	if err == nil {
		in.Bindings, err = plan.ParseBindings(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	p, err := plan.Build(in)
	must.Do(s.t, err)
	p.Tunables = nil
	return p
}

// pass makes a pass of the daemon.
func (s *server) pass(cfg config.Config) (reconcile.Result, []string) {
	s.t.Helper()
	r, words := s.apply(s.plan(cfg))
	s.net.networks = nil // made as the slots are cleared
	sockets, err := s.sd.Loaded(s.t.Context(), "kbnode-job-gpu*.socket")
	must.Do(s.t, err)
	for _, name := range sockets {
		k, _ := plan.OwnsUnit(name)
		s.net.networks = append(s.net.networks, plan.NetworkName(k))
	}
	return r, words
}

// done checks that nothing is left to do, and that no job was killed on the way.
func (s *server) done(cfg config.Config) {
	s.t.Helper()
	s.settled(s.plan(cfg))
}

// limits returns what a slot's slice allows, as files by path.
func (s *server) limits(slot int) map[string]string {
	s.t.Helper()
	out := map[string]string{}
	cgroup := "/sys/fs/cgroup/buildkite.slice/" + plan.SliceName(slot)
	for _, name := range []string{
		cgroup + "/cpuset.cpus", cgroup + "/cpuset.cpus.effective", cgroup + "/cpuset.mems.effective", cgroup + "/memory.max", cgroup + "/pids.max",
		"/run/systemd/system.control/" + plan.SliceName(slot) + ".d/50-DeviceAllow.conf",
		plan.SlotPolicyPath(slot),
	} {
		out[name] = s.read(name)
	}
	return out
}

// serving returns the slots whose agents run.
func (s *server) serving() []int {
	s.t.Helper()
	var running []int
	agents, err := filepath.Glob(filepath.Join(s.h.Root, "sys/fs/cgroup/buildkite.slice/*/buildkite-agent-gpu*.service"))
	must.Do(s.t, err)
	for _, name := range agents {
		k, _ := plan.OwnsUnit(filepath.Base(name))
		running = append(running, k)
	}
	slices.Sort(running)
	return running
}

// apart returns which serving slots have a CPU or a device in common; "" if none. MIG
// instances of a GPU share its node.
func (s *server) apart() string {
	s.t.Helper()
	var cpus cpuset.Set
	owner := map[string]int{}
	for _, k := range s.serving() {
		set, err := cpuset.Parse(s.read("/sys/fs/cgroup/buildkite.slice/" + plan.SliceName(k) + "/cpuset.cpus"))
		must.Do(s.t, err)
		if !set.Disjoint(cpus) || set.Len() == 0 {
			return fmt.Sprintf("%s has CPUs %s, which are none or another's", plan.SlotName(k), set)
		}
		cpus = cpus.Union(set)
		devices := s.read("/run/systemd/system.control/" + plan.SliceName(k) + ".d/50-DeviceAllow.conf")
		part := strings.Contains(devices, "nvidia-cap")
		for line := range strings.FieldsSeq(devices) {
			name := strings.TrimPrefix(line, "DeviceAllow=")
			if !strings.HasPrefix(name, "/dev/") || !strings.ContainsAny(name[len(name)-1:], "0123456789") {
				continue
			}
			whole := !part || strings.Contains(name, "nvidia-cap")
			if other, taken := owner[name]; taken && (whole || other >= 0) {
				return fmt.Sprintf("%s has %s of another slot", plan.SlotName(k), name)
			}
			owner[name] = k
			if !whole {
				owner[name] = -1
			}
		}
	}
	return ""
}

var singles = config.Config{Queue: "q"}

// verbs leaves out what slices are set to.
func verbs(words []string) []string {
	var out []string
	for _, w := range words {
		f := strings.Fields(w)
		if f[0] == "set" || f[0] == "reload" {
			f = f[:min(2, len(f))]
		}
		out = append(out, strings.Join(f, " "))
	}
	return out
}

func TestInstancesOfAWholeGPU(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.pass(singles)
	s.done(singles)
	s.run(3)
	held := s.limits(3)
	s.divide(7, 7, 1)
	s.pass(singles)
	equal(t, "slots that share", "", s.apart())
	equal(t, "limits of a job beside it", held, s.limits(3))
	s.finish(3)
	s.pass(singles)
	s.done(singles)
	equal(t, "slots", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, s.serving())

	// An instance that is made again has another name, and nothing else changes.
	s.run(7)
	s.run(9)
	neighbour := s.limits(9)
	s.inv.GPUs[7].MIG[0].UUID = "MIG-anew"
	_, words := s.pass(singles)
	equal(t, "words while its job runs", []string{"reload", "drain agent-gpu7"}, verbs(words))
	s.finish(7)
	_, words = s.pass(singles)
	equal(t, "words after its job", []string{"start agent-gpu7"}, verbs(words))
	equal(t, "limits of its neighbour", neighbour, s.limits(9))

	// A sibling that stays busy forever holds up no one: gpu8 goes, and gpu9 keeps
	// serving.
	s.inv.GPUs[7].MIG = slices.Delete(s.inv.GPUs[7].MIG, 6, 7)
	for range 4 {
		s.pass(singles)
	}
	s.finish(9)
	s.pass(singles)
	s.pass(singles)
	s.done(singles)
	equal(t, "slots that share", "", s.apart())

	// A GPU that becomes whole again waits for the last job on a part of it.
	s.run(9)
	s.divide(7, 0, 0)
	s.pass(singles)
	equal(t, "slots that share", "", s.apart())
	if waits := s.waiting(singles); !slices.Contains(waits, "gpu7") {
		t.Errorf("gpu7 does not wait: %v", waits)
	}
	s.finish(9)
	s.pass(singles)
	s.done(singles)
	equal(t, "slots", []int{0, 1, 2, 3, 4, 5, 6, 7}, s.serving())
}

// waiting returns the slots with changes that wait.
func (s *server) waiting(cfg config.Config) []string {
	_, changes := s.diff(s.plan(cfg))
	slots := map[string]bool{}
	for _, c := range changes {
		if c.Deferred != "" && c.Slot >= 0 {
			slots[plan.SlotName(c.Slot)] = true
		}
	}
	return slices.Sorted(maps.Keys(slots))
}

// TestReshapeHolds repeatedly reshapes a node to random configurations while jobs come
// and go, also in the middle of a pass.
func TestReshapeHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		for _, applies := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, reload applies %v", seed, applies), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(seed, 11))
				s := newServer(t)
				s.sd.ReloadApplies = applies
				jobs := map[int]map[string]string{} // the limits with which each began
				hold := func(when string) {
					t.Helper()
					if why := s.apart(); why != "" {
						t.Fatalf("%s: %s", when, why)
					}
					for k, want := range jobs {
						if diff := cmp.Diff(want, s.limits(k), cmpopts.IgnoreMapEntries(func(name, _ string) bool { return want[name] == "" })); diff != "" {
							t.Fatalf("%s: limits of the job of %s (-want +got):\n%s", when, plan.SlotName(k), diff)
						}
					}
				}
				begin := func(chance int, inPass bool) {
					for _, k := range s.serving() {
						units, err := s.sd.Units(t.Context(), plan.AgentUnit(k))
						must.Do(t, err)
						if jobs[k] == nil && units[0].Active == "active" && r.IntN(chance) == 0 {
							jobs[k] = s.limits(k)
							if inPass { // its file may be written by now, but its process has read the old one
								delete(jobs[k], plan.SlotPolicyPath(k))
							}
							s.run(k)
						}
					}
				}
				s.h.OnStep(func(words string) error {
					if strings.Contains(words, "/") { // a file
						return nil
					}
					hold("before " + words)
					if strings.HasPrefix(words, "stop buildkite-agent") && !applies {
						begin(8, true)
					}
					return nil
				})
				for round := range 10 {
					cfg := config.Config{Queue: "q", GPUsPerSlot: []int{1, 1, 2, 4, 8}[r.IntN(5)]}
					switch r.IntN(6) {
					case 0:
						cfg = config.Config{Queue: "q", GPUs: config.GPUs{None: true}, Slots: 1 + r.IntN(12)}
					case 1:
						cfg = config.Config{Queue: "q", Groups: [][]string{{"1", "2", "5"}, {"0", "7"}}}
					}
					passes := 0
					for ; passes < 40; passes++ {
						res, _ := s.pass(cfg)
						hold(fmt.Sprintf("round %d, pass %d", round, passes))
						if len(res.Deferred) == 0 {
							if _, changes := s.diff(s.plan(cfg)); len(changes) == 0 {
								break
							}
						}
						for k := range jobs {
							if r.IntN(3) == 0 {
								delete(jobs, k)
								s.finish(k)
							}
						}
						begin(3, false)
					}
					if passes == 40 {
						_, changes := s.diff(s.plan(cfg))
						t.Fatalf("round %d does not end: %v", round, changes)
					}
					s.done(cfg)
				}
			})
		}
	}
}
