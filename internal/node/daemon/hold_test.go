package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// lose makes readings find a GPU lost.
func (n *fakeNode) lose(i int) {
	n.set(func() { n.gpus[i].Vendor, n.gpus[i].Healthy, n.gpus[i].Error = "amd", false, "it is lost" })
}

// clock returns the clock of a machine.
func clock() func() (health.Moment, error) {
	booted := time.Now().Add(-time.Hour)
	return func() (health.Moment, error) {
		return health.Moment{Now: time.Now(), Up: time.Since(booted), Boot: "1"}, nil
	}
}

// block makes a path unwritable until unblock is called.
func block(t *testing.T, path string) (unblock func()) {
	t.Helper()
	must.Do(t, errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)))
	return func() {
		must.Do(t, os.RemoveAll(path))
	}
}

// TestJudgedWhateverFails checks that the agent of a lost GPU is stopped while something
// else is broken, and that the other slot serves.
func TestJudgedWhateverFails(t *testing.T) {
	t.Parallel()
	hangs := func(method string) func(*testing.T, *fakeNode) func() {
		return func(_ *testing.T, n *fakeNode) func() {
			hang := make(chan struct{})
			n.set(func() { n.hang = map[string]chan struct{}{method: hang} })
			return func() { close(hang) }
		}
	}
	file := func(path string) func(*testing.T, *fakeNode) func() {
		return func(t *testing.T, n *fakeNode) func() { return block(t, filepath.Join(n.root, path)) }
	}
	for name, breaks := range map[string]func(*testing.T, *fakeNode) (repair func()){
		"a configuration with a typo": func(_ *testing.T, n *fakeNode) func() {
			n.set(func() { n.err, n.stamp = errors.New("a key that no one knows"), "typo" })
			return func() { n.set(func() { n.err = nil }) }
		},
		"another kbnode that works": func(t *testing.T, n *fakeNode) func() {
			release, err := (&reconcile.Host{Root: n.root}).Lock()
			must.Do(t, err)
			n.set(func() { n.stamp = "other" })
			return release
		},
		"users that cannot be read": file("etc/passwd"),
		"no drains.json":            file(plan.DrainsPath),
		"no health.json":            file(HealthPath),
		"no events":                 file("var/lib/kbnode/events.jsonl"),
		"no mended.json":            file(resetsPath),
		"no directory for the lock": file(plan.LockPath),
		"a machine whose reading hangs": func(t *testing.T, n *fakeNode) func() {
			n.set(func() { n.stamp = "other" })
			return hangs("Read")(t, n)
		},
		"a state whose reading hangs": hangs("Observe"),
		"files that hang":             hangs("Stamp"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode) {
				n.gpus = twoGPUs()
				running(t, n, Options{})
				passwd, err := os.ReadFile(filepath.Join(n.root, "etc/passwd"))
				must.Do(t, err)
				repair := breaks(t, n)
				n.lose(1)
				time.Sleep(6 * time.Minute)
				n.serves(t, 0)
				repair()
				repaired := time.Now()
				if name == "users that cannot be read" {
					must.Do(t, os.WriteFile(filepath.Join(n.root, "etc/passwd"), passwd, 0o600))
				}
				for len(n.drains()) == 0 && time.Since(repaired) < 40*time.Second { // at the next pass
					time.Sleep(time.Second)
				}
				if drains := n.drains(); len(drains) != 1 || drains[0].Slot != 1 {
					t.Errorf("kept after the repair: %+v", drains)
				}
				n.set(func() { n.gpus[1].Healthy, n.gpus[1].Error = true, "" })
				time.Sleep(3 * time.Minute)
				n.released(t)
			})
		})
	}
}

// TestSystemdThatDoesNotAnswer checks that the verdict stays, and stops the agent later.
func TestSystemdThatDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		running(t, n, Options{})
		n.set(func() { n.hostErr = errors.New("connect to systemd: no answer in 25s") })
		n.lose(1)
		later(2 * time.Minute)
		if stored, err := ReadHealth(n.root); err != nil || len(stored.Verdicts) != 1 {
			t.Errorf("kept %+v, %v", stored.Verdicts, err)
		}
		n.set(func() { n.hostErr = nil })
		time.Sleep(time.Minute)
		n.serves(t, 0)
	})
}

// TestUnitsThatAreNotKnown checks that the agent of a lost GPU is asked to stop, once,
// without knowing whether it runs, and that no agent is judged meanwhile.
func TestUnitsThatAreNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		running(t, n, Options{})
		must.Do(t, n.sd.Fail(plan.AgentUnit(0)))
		n.sd.Words()
		n.set(func() { n.unitsErr = errors.New("read units: no answer") })
		n.lose(1)
		later(10 * time.Minute)
		must.Equal(t, []string{"drain " + plan.AgentUnit(1)}, n.sd.Words())
		stored, err := ReadHealth(n.root)
		if err != nil || slices.ContainsFunc(stored.Verdicts, func(v health.Verdict) bool { return v.Check == health.CheckAgent }) {
			t.Errorf("verdicts: %+v, %v", stored.Verdicts, err)
		}
	})
}

// TestUnknownEngine checks that no engine is asked while its socket is known only from a
// configuration.
func TestUnknownEngine(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.docker = errors.New("no such file")
	d := newDaemon(Options{Root: n.root, Node: n})
	host := &reconcile.Host{Root: n.root, Systemd: n.sd}
	if got := d.node(t.Context(), host); got.Docker != "" || !slices.Equal(got.Unread, []string{health.CheckDocker}) {
		t.Errorf("%+v", got)
	}
	d.reading.Socket = "/run/docker.sock"
	host.Systemd = nil
	if got := d.node(t.Context(), host); got.Docker == "" || !slices.Equal(got.Unread, []string{health.CheckUnit}) {
		t.Errorf("%+v", got)
	}
}

// TestDisksOfTheEngine watches the disks that images are on, and reads the CDI specification, as the engine last told them.
func TestDisksOfTheEngine(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		watched := func(want ...string) {
			t.Helper()
			n.set(func() { n.stamp += "." })
			later(10 * time.Minute)
			n.set(func() { must.Equal(t, append([]string{"/"}, want...), n.disks) })
		}
		running(t, n, Options{})
		watched("/var/lib/docker", "/var/lib/buildkite-agent")
		n.set(func() {
			n.engine = inventory.Docker{RootDir: "/nvme/docker", ContainerdDir: "/var/lib/containerd", CDIDirs: []string{"/etc/docker/cdi"}}
		})
		watched("/nvme/docker", "/var/lib/buildkite-agent", "/var/lib/containerd")
		n.set(func() { n.engine = inventory.Docker{} }) // it did not answer
		watched("/nvme/docker", "/var/lib/buildkite-agent", "/var/lib/containerd")
		n.set(func() { must.Equal(t, []string{"/etc/docker/cdi"}, n.specs) })
	})
}

// TestEngineThatDoesNotAnswer checks that an engine that stays silent drains the node, ends
// no job, and releases all slots later. One slow answer does nothing. No plan can be made
// meanwhile.
func TestEngineThatDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		running(t, n, Options{})
		must.Do(t, n.sd.RunJob(0, "job-0"))
		down := func(err error) { n.set(func() { n.docker, n.err, n.stamp = err, err, n.stamp+"." }) }
		for range 3 {
			down(context.DeadlineExceeded)
			time.Sleep(30 * time.Second)
			down(nil)
			time.Sleep(time.Minute)
			n.serves(t, 0, 1)
		}
		down(context.DeadlineExceeded)
		time.Sleep(3 * time.Minute)
		units, err := n.sd.Units(t.Context(), plan.AgentUnit(0), plan.AgentUnit(1))
		must.Do(t, err)
		if !units[0].Stopping() || units[1].Running() || len(n.sd.Killed()) > 0 {
			t.Errorf("agents: %+v; killed %q; drains %+v", units, n.sd.Killed(), n.drains())
		}
		if words := n.sd.Words(); slices.Index(words, "drain "+plan.AgentUnit(0)) < 0 || slices.Contains(words[slices.Index(words, "drain "+plan.AgentUnit(0))+1:], "drain "+plan.AgentUnit(0)) {
			t.Errorf("the agent with a job is not asked once to stop: %q", words)
		}
		must.Do(t, n.sd.FinishJob(0))
		down(nil)
		time.Sleep(2 * time.Minute)
		n.released(t)
	})
}
