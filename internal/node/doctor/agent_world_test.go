package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/slottest"
)

// world is a node of two slots in a directory, with everything that the agents' checks look
// at, and with a server in place of Buildkite.
type world struct {
	t *testing.T
	*Machine
	f       *fake
	bk      *httptest.Server
	answers map[string]string // of bk, by path; "404" and the like are statuses
}

const agentTokenOfTests = "a-token-that-is-good"

func newWorld(t *testing.T) *world {
	t.Helper()
	root := must.MemoryDir(t) // sockets have short paths
	w := &world{t: t, answers: map[string]string{
		"/v3":         "404",
		"/v3/metrics": `{"organization":{"slug":"kbnode"},"agents":{"queues":{"b200":{"total":2}}}}`,
		"/v2/organizations/kbnode/agents": `[{"name":"node1-gpu0","hostname":"a","meta_data":["queue=b200"]},
			{"name":"node1-gpu1","hostname":"a","meta_data":["queue=b200"]},{"name":"other-gpu0","paused":true}]`,
	}}
	w.bk = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.bk.Close)

	read := *twoGPUs(t)
	inv := &read
	full := config.Config{Queue: "b200", Agent: config.Agent{Endpoint: w.bk.URL + "/v3"}}.WithDefaults()
	w.f = &fake{cfg: &full, inv: inv, journal: map[string][]string{}}
	w.Machine = &Machine{
		Tree: host.Tree{Root: root}, Source: w.f, Now: time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC), Config: &full, Inventory: inv,
		API: API{Token: "an-api-token", URL: w.bk.URL},
	}
	w.replan(plan.Input{})
	w.install()
	return w
}

var (
	readOnce sync.Once
	readTwo  *inventory.Inventory
)

// twoGPUs returns a machine, read once.
func twoGPUs(t *testing.T) *inventory.Inventory {
	t.Helper()
	readOnce.Do(func() {
		m := machinetest.Machine{Name: "two", Packages: 1, Nodes: 1, Cores: 24, Threads: 2, CoresPerL3: 8, NodeBytes: 128 << 30, NVIDIADriver: "580.95.05"}
		for i := range 2 {
			m.NVIDIA = append(m.NVIDIA, machinetest.NVIDIA{PCI: fmt.Sprintf("0000:%02x:00.0", i+1), Device: "2901", Model: "NVIDIA B200", Minor: i, UUID: fmt.Sprintf("GPU-29010000-0000-4000-8000-%012x", i+1)})
		}
		m.Live = machinetest.Live(m)
		var err error
		readTwo, err = detect.Read(t.Context(), detect.Options{Root: m.Dir(t)})
		must.Do(t, err)
	})
	return readTwo
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); strings.HasPrefix(r.URL.Path, "/v3/") && got != "Token "+agentTokenOfTests {
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	answer := w.answers[r.URL.Path]
	if status, err := strconv.Atoi(answer); err == nil {
		rw.Header().Set("Location", "https://login.example/")
		rw.WriteHeader(status)
		return
	}
	_, _ = rw.Write([]byte(answer))
}

// replan makes the plan again.
func (w *world) replan(in plan.Input) {
	w.t.Helper()
	in.Inventory, in.Config, in.Binary, in.Version = w.Inventory, w.Config, "/usr/local/bin/kbnode", "1.2.3"
	in.Config.Node = "node1"
	p, err := plan.Build(in)
	w.must(err)
	w.Plan = p
}

// install writes the planned files, and makes everything run.
func (w *world) install() {
	for _, d := range w.Plan.Dirs {
		w.must(os.MkdirAll(w.Path(d.Path), 0o755))
		mode := fs.FileMode(d.Mode & 0o777)
		if d.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		w.must(os.Chmod(w.Path(d.Path), mode))
	}
	for _, f := range w.Plan.Files {
		if f.Source == "" && strings.HasPrefix(f.Path, "/etc/buildkite-agent/") {
			w.put(f.Path, f.Content, fs.FileMode(f.Mode))
		}
	}
	w.put(plan.TokenPath, agent.RenderToken(agentTokenOfTests), 0o600)
	w.put("/bin/bash", "", 0o755)
	w.put("/usr/bin/buildkite-agent", "", 0o755)
	w.put(plan.BindingsPath, "", 0o644)
	passwd := ""
	w.State = &reconcile.State{Units: map[string]slot.Unit{}}
	for _, s := range w.Plan.Slots {
		passwd += fmt.Sprintf("%s:x:%d:%d::/:/\n", s.User, 990+s.Index, os.Getgid())
		for _, name := range []string{plan.AgentUnit(s.Index), plan.JobSocket(s.Index)} {
			w.State.Units[name] = slot.Unit{Name: name, Load: "loaded", Active: "active", Sub: "running", Since: w.Now.Add(-time.Hour), Started: w.Now.Add(-time.Hour)}
		}
		w.State.Slots = append(w.State.Slots, slot.State{
			Index: s.Index, Name: s.Name, Agent: w.State.Units[plan.AgentUnit(s.Index)], Slice: slot.Slice{Cgroup: "/x"},
		})
		w.put(slot.RegisteredMarker(s.Index), "", 0o644)
		w.listen(s.Index)
	}
	w.put("/etc/passwd", passwd, 0o644)
}

// listen answers in place of a slot.
func (w *world) listen(k int) {
	w.t.Helper()
	slottest.Serve(w.t, w.Path(plan.SocketPath(k)), func(_ context.Context, kind byte, _ []byte, _ *slot.Frames) slot.Outcome {
		if kind != slot.RequestCheck {
			w.t.Errorf("doctor asks the slot for %c", kind)
		}
		return slot.Outcome{NodeFault: w.answers["slot"]}
	})
	w.must(os.Chmod(w.Path(plan.SocketPath(k)), 0o660))
}

func (w *world) must(err error) {
	w.t.Helper()
	must.Do(w.t, err)
}

func (w *world) put(name, text string, mode fs.FileMode) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.Path(name)), 0o755))
	w.must(os.WriteFile(w.Path(name), []byte(text), mode))
	w.must(os.Chmod(w.Path(name), mode))
}

// runs makes a process of buildkite-agent.
func (w *world) runs(pid int, command, cgroup string) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	w.put(dir+"comm", "buildkite-agent\n", 0o644)
	w.put(dir+"cmdline", "/usr/bin/buildkite-agent\x00"+command+"\x00", 0o644)
	w.put(dir+"cgroup", "0::"+cgroup+"\n", 0o644)
}

// agentOf changes the agent of a slot as systemd sees it.
func (w *world) agentOf(k int, change func(*slot.Unit)) {
	name := plan.AgentUnit(k)
	u := w.State.Units[name]
	change(&u)
	w.State.Units[name], w.State.Slots[k].Agent = u, u
}

func (w *world) socketOf(k int, change func(*slot.Unit)) {
	u := w.State.Units[plan.JobSocket(k)]
	change(&u)
	w.State.Units[plan.JobSocket(k)] = u
}

// dropIn adds an operator's drop-in.
func (w *world) dropIn(k int, text string) {
	name := plan.UnitDir + "/" + plan.AgentUnit(k) + ".d/mine.conf"
	w.put(name, "[Service]\nEnvironment=HTTPS_PROXY=http://proxy\n"+text+"\n", 0o644)
}

// ask runs all checks of agents and Buildkite, and assumes that what they need from other
// groups is OK.
func (w *world) ask() *Report {
	w.t.Helper()
	checks := slices.Concat(group("agent"), group("buildkite"))
	for i := range checks {
		for _, ids := range []*[]string{&checks[i].Needs, &checks[i].After} {
			*ids = slices.DeleteFunc(slices.Clone(*ids), func(id string) bool {
				return !slices.ContainsFunc(checks, func(c Check) bool { return c.ID == id })
			})
		}
	}
	observe(w.Machine)
	r, err := Run(w.t.Context(), w.Machine, Options{Checks: checks})
	w.must(err)
	played(r.Checks...)
	return r
}

// deaf makes a socket that nothing listens on anymore.
func (w *world) deaf(k int) {
	w.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.Path(plan.SocketPath(k)), Net: "unix"})
	w.must(err)
	l.SetUnlinkOnClose(false)
	w.must(l.Close())
	w.must(os.Chmod(w.Path(plan.SocketPath(k)), 0o660))
}
