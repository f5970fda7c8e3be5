package reconcile_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// want is what a test plans: slots of width CPUs each, starting with CPU first.
type want struct {
	slots      int
	first      int
	width      int
	bytes      int64
	generation string
	parked     int // the slot that takes no jobs; -1 for none
}

func slots(n int) want {
	return want{slots: n, first: 2, width: 2, bytes: 1 << 30, generation: "g1", parked: -1}
}

func (w want) from(cpu int) want       { w.first = cpu; return w }
func (w want) memory(bytes int64) want { w.bytes = bytes; return w }
func (w want) again() want             { w.generation = "g2"; return w }
func (w want) park(slot int) want      { w.parked = slot; return w }

const header = "# Written by kbnode. Changes are overwritten; edit /etc/kbnode/config.yaml.\n"

// plan makes the plan of a node, small but with everything that a real one has.
func (w want) plan(t testing.TB) *plan.Plan {
	t.Helper()
	p := &plan.Plan{Schema: plan.Schema, Node: "node"}
	file := func(slot int, mode uint32, name, text string) {
		p.Files = append(p.Files, plan.File{Path: name, Mode: mode, Owner: "root", Content: text, Slot: slot})
	}
	for _, d := range []string{"/etc/kbnode", "/etc/kbnode/slots", "/etc/buildkite-agent", plan.HooksDir, "/var/lib/kbnode", "/var/lib/buildkite-agent"} {
		p.Dirs = append(p.Dirs, plan.Dir{Path: d, Mode: 0o755, Owner: "root"})
	}
	file(-1, 0o755, plan.HooksDir+"/environment", "#!/bin/sh\n"+header+"exit 0\n")
	file(-1, 0o644, plan.BindingsPath, "{\"written_by\": \"kbnode\"}\n")
	all := fmt.Sprintf("%d-%d", w.first, w.first+w.slots*w.width-1)
	p.Slices = append(p.Slices, plan.Slice{Unit: plan.ParentSlice, Slot: -1, CPUs: all, Partition: true})
	file(-1, 0o644, plan.UnitDir+"/"+plan.ParentSlice, header+"[Slice]\nAllowedCPUs="+all+"\n")
	file(-1, 0o644, plan.UnitDir+"/"+plan.NodeService, header+"[Service]\nType=notify\n[Install]\nWantedBy=multi-user.target\n")
	p.Units = append(p.Units, plan.Unit{Name: plan.NodeService, Slot: -1, Enabled: true, Active: true})
	for k := range w.slots {
		cpus := fmt.Sprintf("%d-%d", w.first+k*w.width, w.first+(k+1)*w.width-1)
		user := plan.UserName(k)
		p.Slots = append(p.Slots, plan.Slot{Index: k, Name: plan.SlotName(k), CPUs: cpus, User: user})
		p.Users = append(p.Users, plan.User{Name: user, Home: plan.WorkDir(k)})
		p.Dirs = append(p.Dirs,
			plan.Dir{Path: plan.AgentDir(k), Mode: 0o755, Owner: "root"},
			plan.Dir{Path: plan.WorkDir(k), Mode: plan.WorkMode, Owner: "root:" + user})
		s := plan.Slice{
			Unit: plan.SliceName(k), Slot: k, CPUs: cpus, MemoryNodes: "0", MemoryBytes: w.bytes, TasksMax: 8192,
			Devices: []plan.Device{{Path: "/dev/nvidia" + strconv.Itoa(k), Perm: "rw"}, {Path: "char-*", Perm: "m"}},
		}
		p.Slices = append(p.Slices, s)
		policy, err := json.Marshal(plan.JobPolicy{WrittenBy: "kbnode", Slot: k, CPUs: cpus, MemoryBytes: w.bytes})
		must.Do(t, err)
		file(k, 0o644, plan.SlotPolicyPath(k), string(policy)+"\n")
		file(k, 0o644, plan.AgentDir(k)+"/buildkite-agent.cfg", header+"name=\"node-"+plan.SlotName(k)+"\"\n# "+w.generation+"\n")
		file(k, 0o644, plan.UnitDir+"/"+s.Unit, fmt.Sprintf("%s[Slice]\nAllowedCPUs=%s\nAllowedMemoryNodes=0\nMemoryMax=%d\nMemorySwapMax=0\nTasksMax=8192\n", header, cpus, w.bytes))
		file(k, 0o644, plan.UnitDir+"/"+plan.JobSocket(k), header+"[Socket]\nListenStream="+plan.SocketPath(k)+"\nAccept=yes\n")
		file(k, 0o644, plan.UnitDir+"/"+plan.JobService(k), header+"[Service]\nStandardInput=socket\n")
		file(k, 0o644, plan.UnitDir+"/"+plan.AgentUnit(k), header+"[Service]\nEnvironment=KBNODE_GENERATION="+w.generation+"\nSlice="+s.Unit+"\nKillMode=mixed\n")
		p.Units = append(p.Units,
			plan.Unit{Name: plan.JobSocket(k), Slot: k, Active: k != w.parked},
			plan.Unit{Name: plan.AgentUnit(k), Slot: k, Active: k != w.parked, Generation: w.generation})
	}
	return p
}

// machine is a tree with a systemd in it, and a host that changes it.
type machine struct {
	t  testing.TB
	sd *systemdtest.Systemd
	h  *reconcile.Host
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	root := must.MemoryDir(t)
	sd, err := systemdtest.New(root, "0-127", "0")
	must.Do(t, err)
	return &machine{t: t, sd: sd, h: &reconcile.Host{Root: root, Systemd: sd, Users: systemdtest.Users{Root: root}}}
}

// installed returns a machine with n slots.
func installed(t testing.TB, n int) *machine {
	t.Helper()
	m := newMachine(t)
	m.apply(slots(n).plan(t))
	m.sd.Words()
	return m
}

// diff returns what has to change.
func (m *machine) diff(p *plan.Plan) (*reconcile.State, []reconcile.Change) {
	m.t.Helper()
	s, err := m.h.Observe(m.t.Context(), p)
	must.Do(m.t, err)
	return s, reconcile.Diff(p, s)
}

// apply makes the machine as planned and returns what systemd was asked to do, with short names
// of units: "stop agent-gpu1".
func (m *machine) apply(p *plan.Plan) (reconcile.Result, []string) {
	m.t.Helper()
	return m.applyAfter(p, func() {}), short(m.sd.Words())
}

// applyAfter applies a plan to a machine that changes after it was observed.
func (m *machine) applyAfter(p *plan.Plan, change func()) reconcile.Result {
	m.t.Helper()
	r, err := m.tryAfter(p, change)
	must.Do(m.t, err)
	return r
}

func (m *machine) tryAfter(p *plan.Plan, change func()) (reconcile.Result, error) {
	s, err := m.h.Observe(m.t.Context(), p)
	if err != nil {
		return reconcile.Result{}, err
	}
	changes := reconcile.Diff(p, s)
	change()
	return m.h.Apply(m.t.Context(), p, s, changes)
}

func short(words []string) []string {
	for i, w := range words {
		words[i] = strings.NewReplacer("buildkite-agent-", "agent-", "kbnode-job-", "", ".service", "").Replace(w)
	}
	return words
}

// asks applies a plan, which asks systemd for these words and no others.
func (m *machine) asks(p *plan.Plan, words ...string) {
	m.t.Helper()
	_, got := m.apply(p)
	must.Equal(m.t, words, got)
}

// settled checks that nothing is left to change, and that no job was killed on the way.
func (m *machine) settled(p *plan.Plan) {
	m.t.Helper()
	if _, changes := m.diff(p); len(changes) > 0 {
		m.t.Fatalf("changes are left: %v", changes)
	}
	if killed := m.sd.Killed(); len(killed) > 0 {
		m.t.Fatalf("jobs were killed: %v", killed)
	}
}

// ends ends a job, after which the machine becomes as planned.
func (m *machine) ends(slot int, p *plan.Plan) {
	m.t.Helper()
	m.finish(slot)
	m.apply(p)
	m.settled(p)
}

func (m *machine) uninstall() {
	m.t.Helper()
	_, err := m.h.Uninstall(m.t.Context(), nil)
	must.Do(m.t, err)
}

// wantAbsent checks that there is nothing at a path.
func (m *machine) wantAbsent(name string) {
	m.t.Helper()
	if m.exists(name) {
		m.t.Errorf("%s is left", name)
	}
}

// try is apply for a run that fails.
func (m *machine) try(p *plan.Plan) error {
	m.t.Helper()
	_, err := m.tryAfter(p, func() {})
	return err
}

// killAt runs f and kills it at its n-th step: nothing after that runs, as with kill -9. It
// reports whether f ended before.
func (m *machine) killAt(n int, f func()) (ended bool) {
	m.t.Helper()
	type killed struct{}
	step := 0
	m.h.OnStep(func(string) error {
		step++
		if step > n {
			panic(killed{})
		}
		return nil
	})
	defer m.h.OnStep(nil)
	defer func() {
		if r := recover(); r != nil && r != (killed{}) {
			panic(r)
		}
	}()
	f()
	return true
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	name = filepath.Join(m.h.Root, name)
	must.Do(m.t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.Do(m.t, os.WriteFile(name, []byte(text), 0o644))
}

func (m *machine) read(name string) string {
	m.t.Helper()
	return strings.TrimSpace(must.Read(m.t, filepath.Join(m.h.Root, name)))
}

func (m *machine) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(m.h.Root, name))
	return err == nil
}

// chown gives directories to a user, if the test may.
func (m *machine) chown(uid int, names ...string) {
	m.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	for _, name := range names {
		must.Do(m.t, os.Chown(filepath.Join(m.h.Root, name), uid, uid))
	}
}

// tree returns everything on the machine: contents, modes, owners and links by path,
// without what differs between processes.
func (m *machine) tree() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(m.h.Root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(name, m.h.Root)
		info, err := d.Info()
		if err != nil || strings.HasPrefix(rel, "/proc") || strings.HasPrefix(rel, "/run/systemd/system.control/buildkite.slice.d") || d.Name() == "cgroup.procs" {
			return err
		}
		owner := ""
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && sys.Uid > 0 {
			owner = fmt.Sprintf(" of %d:%d", sys.Uid, sys.Gid)
		}
		switch {
		case d.IsDir():
			out[rel+"/"] = info.Mode().String() + owner
		case info.Mode()&fs.ModeSymlink != 0:
			out[rel], err = os.Readlink(name)
		default:
			var data []byte
			data, err = os.ReadFile(name)
			out[rel] = info.Mode().String() + owner + " " + string(data)
		}
		return err
	})
	must.Do(m.t, err)
	return out
}

// brief returns changes in short form.
func brief(changes []reconcile.Change) []string {
	out := []string{}
	for _, c := range changes {
		out = append(out, string(c.Kind)+" "+c.Subject)
	}
	return out
}
