package reconcile_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/firewall"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// fakeNetwork has rules for the users that existed when the rules were written.
type fakeNetwork struct {
	users    systemdtest.Users
	ruled    []string // nil: there are no rules
	networks []string
	hidden   bool // as for a user who is not root
	err      error
	silent   bool // the engine does not answer
}

func (f *fakeNetwork) names() ([]string, error) {
	users, err := host.Tree{Root: f.users.Root}.Users()
	names := []string{}
	for name := range users {
		if name != "root" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (f *fakeNetwork) Observe(context.Context) (reconcile.NetworkState, error) {
	state := reconcile.NetworkState{Rules: firewall.Intact, Networks: f.networks}
	names, err := f.names()
	switch {
	case f.hidden:
		return reconcile.NetworkState{}, nil
	case f.ruled == nil:
		state.Rules = firewall.Absent
	case !slices.Equal(names, f.ruled):
		state.Rules = firewall.Altered
	}
	if f.silent {
		state.Networks, err = nil, errors.Join(err, context.DeadlineExceeded)
	}
	return state, err
}

func (f *fakeNetwork) Protect() (err error) {
	if f.err == nil {
		f.ruled, err = f.names()
	}
	return errors.Join(f.err, err)
}

func (f *fakeNetwork) Unprotect() error {
	f.ruled = nil
	return f.err
}

func (f *fakeNetwork) Remove(_ context.Context, name string) error {
	f.networks = slices.DeleteFunc(f.networks, func(n string) bool { return n == name })
	return f.err
}

func networked(t *testing.T) (*machine, *fakeNetwork) {
	m := newMachine(t)
	f := &fakeNetwork{users: systemdtest.Users{Root: m.h.Root}}
	m.h.Network = f
	return m, f
}

func networkChanges(changes []reconcile.Change) []string {
	kinds := []reconcile.Kind{reconcile.Protect, reconcile.Unprotect, reconcile.DelNet}
	return brief(slices.DeleteFunc(slices.Clone(changes), func(c reconcile.Change) bool { return !slices.Contains(kinds, c.Kind) }))
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	m, f := networked(t)
	p := slots(2).plan(t)
	r, _ := m.apply(p)
	equal(t, "changes of the first run", []string{"protect inet kbnode"}, networkChanges(r.Applied))
	names := brief(r.Applied)
	if slices.Index(names, "protect inet kbnode") > slices.Index(names, "start kbnode-job-gpu0.socket") {
		t.Errorf("jobs may start before the rules are there: %v", names)
	}
	equal(t, "rules", []string{"kbnode-gpu0", "kbnode-gpu1"}, f.ruled)
	m.settled(p)

	// The policies define what slots may reach, and are written before the rules.
	closed := slots(2).plan(t)
	for i, file := range closed.Files {
		if file.Path == plan.SlotPolicyPath(1) {
			closed.Files[i].Content = strings.Replace(file.Content, `"network":""`, `"network":"internet"`, 1)
		}
	}
	r, _ = m.apply(closed)
	names = brief(r.Applied)
	if policy := slices.Index(names, "update "+plan.SlotPolicyPath(1)); policy < 0 || policy > slices.Index(names, "protect inet kbnode") {
		t.Errorf("the rules would be those of before: %v", names)
	}
	m.apply(p)

	// A firewall that starts again, and a node that gains a slot and loses it.
	f.ruled = nil
	r, _ = m.apply(p)
	equal(t, "changes after a flush", []string{"protect inet kbnode"}, brief(r.Applied))
	three := slots(3).plan(t)
	m.apply(three)
	m.settled(three)
	f.networks = []string{"kbnode-gpu2", "kbnode-gpu1", "kbnode-gpu02", "theirs"}
	r, _ = m.apply(p)
	equal(t, "changes without it", []string{"delnet kbnode-gpu2", "protect inet kbnode"}, networkChanges(r.Applied))
	equal(t, "networks", []string{"kbnode-gpu1", "kbnode-gpu02", "theirs"}, f.networks)

	// A user who may not see the rules plans nothing about them.
	f.hidden = true
	m.settled(p)
}

func TestNetworkUninstall(t *testing.T) {
	t.Parallel()
	m, f := networked(t)
	m.apply(slots(2).plan(t))
	f.networks = []string{"kbnode-gpu0", "kbnode-gpu1"}

	// What cannot be removed stops the uninstall while it can still continue later.
	f.err = errors.New("network has active endpoints")
	if _, err := m.h.Uninstall(t.Context(), nil); !errors.Is(err, f.err) {
		t.Fatalf("uninstall: %v", err)
	}
	if !m.exists(plan.SlotPolicyPath(0)) {
		t.Error("files are gone that the next uninstall needs")
	}
	f.err, f.networks = nil, []string{"kbnode-gpu0", "kbnode-gpu1"}
	r, err := m.h.Uninstall(t.Context(), nil)
	must.Do(t, err)
	equal(t, "changes", []string{"delnet kbnode-gpu0", "delnet kbnode-gpu1", "unprotect inet kbnode"}, networkChanges(r.Applied))
	if f.ruled != nil || len(f.networks) > 0 {
		t.Errorf("left: rules for %v, networks %v", f.ruled, f.networks)
	}
	m.settled(&plan.Plan{})
}

// TestNetworkOfWhatIsGone removes a network that the engine would keep for a container that is gone.
func TestNetworkOfWhatIsGone(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "job.sock")
	var asked []string
	must.Serve(t, socket, func(w http.ResponseWriter, r *http.Request) {
		_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		asked = append(asked, r.Method+" "+path)
		switch asked[len(asked)-1] {
		case "GET networks/kbnode-gpu0":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"Id": "1", "Name": "kbnode-gpu0", "Containers": {"c1": {"Name": "old"}}}`))
		case "DELETE networks/kbnode-gpu0":
			w.WriteHeader(map[bool]int{true: http.StatusNoContent, false: http.StatusForbidden}[slices.Contains(asked, "POST networks/1/disconnect")])
		case "GET containers/c1/json", "GET containers/old/json":
			w.WriteHeader(http.StatusNotFound)
		}
	})
	must.Do(t, reconcile.SystemNetwork{Socket: socket}.Remove(t.Context(), "kbnode-gpu0"))
}

func TestNetworkOfBusySlot(t *testing.T) {
	t.Parallel()
	m, f := networked(t)
	m.apply(slots(2).plan(t))
	f.networks = []string{"kbnode-gpu0", "kbnode-gpu1"}
	m.run(1)
	_, changes := m.diff(slots(1).plan(t))
	for _, c := range changes {
		if c.Kind == reconcile.DelNet && c.Deferred == "" {
			t.Errorf("a running job would lose its network: %s", c)
		}
	}
	// A missing rule does not wait for jobs: it protects them.
	f.ruled = nil
	r, _ := m.apply(slots(2).plan(t))
	equal(t, "changes", []string{"protect inet kbnode"}, brief(r.Applied))
}

// An engine that does not answer keeps nothing else from being fixed. An uninstall would
// leave its networks behind, so it fails.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	m, f := networked(t)
	m.apply(slots(2).plan(t))
	f.silent, f.ruled, f.networks = true, nil, []string{plan.NetworkName(0), plan.NetworkName(1)}
	p := slots(1).plan(t)
	state, err := m.h.Observe(t.Context(), p)
	if err != nil || !slices.ContainsFunc(state.Warnings, func(w string) bool { return strings.Contains(w, "networks: context deadline") }) {
		t.Fatalf("warnings %q, %v", state.Warnings, err)
	}
	m.apply(p)
	if f.ruled == nil || len(f.networks) != 2 {
		t.Errorf("rules %q, networks %q", f.ruled, f.networks)
	}
	if _, err := m.h.Observe(t.Context(), &plan.Plan{}); err == nil {
		t.Error("an uninstall does not know of the networks, and goes on")
	}
}

// A socket that jobs cannot reach starts again, together with its agent, when its slot is
// idle.
func TestSocketThatIsCutOff(t *testing.T) {
	t.Parallel()
	p := slots(2).plan(t)
	for k := range 2 {
		p.Dirs = append(p.Dirs, plan.Dir{Path: plan.RunDir(k), Mode: 0o711, Owner: "root"})
	}
	for name, cut := range map[string]func(run string) error{
		"directory gone":      os.RemoveAll,
		"agent's part gone":   func(run string) error { return os.RemoveAll(filepath.Join(run, "agent")) },
		"socket gone":         func(run string) error { return os.Remove(filepath.Join(run, "job.sock")) },
		"a file in its place": func(run string) error { return os.WriteFile(filepath.Join(run, "job.sock.new"), nil, 0o600) },
		"another one's socket": func(run string) error {
			return unix.Mknod(filepath.Join(run, "job.sock.new"), unix.S_IFSOCK|0o660, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.sd.Listen = true
			m.h.LookAtSockets()
			m.apply(p)
			m.settled(p)
			run := filepath.Join(m.h.Root, plan.RunDir(1))
			must.Do(t, cut(run))
			if placed := filepath.Join(run, "job.sock.new"); m.exists(plan.RunDir(1) + "/job.sock.new") {
				later := time.Now().Add(time.Minute)
				must.Do(t, os.Chtimes(placed, later, later))
				must.Do(t, os.Rename(placed, filepath.Join(run, "job.sock")))
			}
			m.run(1)
			m.asks(p, "drain agent-gpu1")
			m.finish(1)
			m.asks(p, "restart gpu1.socket", "start agent-gpu1")
			m.settled(p)
			if err := cut(run); err != nil || !m.exists(plan.RunDir(1)) && name != "directory gone" {
				t.Fatal(err)
			}
			if m.exists(plan.RunDir(1) + "/job.sock.new") {
				return
			}
			m.asks(p, "stop agent-gpu1", "restart gpu1.socket", "start agent-gpu1")
			equal(t, "jobs killed", nil, m.sd.Killed())
		})
	}
}
