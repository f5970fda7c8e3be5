package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

const (
	unitName = plan.NodeService
	unitText = "# " + plan.Marker + "\n[Service]\nType=notify\n[Install]\nWantedBy=multi-user.target\n"
)

// fakeNode is a machine's tree with one unit.
type fakeNode struct {
	root string
	sd   *systemdtest.Systemd

	mu     sync.Mutex
	reads  int
	hosts  int
	err    error // of Read
	listen string
	stamp  string
	// looksAtStamp is after how many calls of Stamp it changes; 0 is never.
	looksAtStamp int
	gpus         []inventory.GPU
	started      time.Duration // of each reading
	watches      int
	dead         bool // the watch's connection
	docker       error
	engine       inventory.Docker
	disks, specs []string // whose signals were asked for last, and where the CDI specification was looked for
	hostErr      error
	unitsErr     error
	loadedErr    error                    // of Observe
	onDocker     func()                   // called by each Docker
	onRead       func()                   // called by each Read
	hang         map[string]chan struct{} // by method: it returns once the channel is closed
	changed      func(string)
	away         map[int]string // why the plan parks slots
	clock        health.Clock
	loanEnd      time.Time
	proof        bool // GPUs owe an evaluation after a fault
	evaluate     func(ctx context.Context, slot int) (passed bool, says string, err error)
}

func newFakeNode(t *testing.T) *fakeNode {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"/var/lib/kbnode", "/run"} {
		must.Do(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	sd, err := systemdtest.New(root, "0-3", "0")
	must.Do(t, err)
	return &fakeNode{root: root, sd: sd}
}

func (n *fakeNode) Read(context.Context) (*Reading, error) {
	n.wait("Read")
	if n.onRead != nil {
		n.onRead()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	r := &Reading{
		Inventory: &inventory.Inventory{GPUs: slices.Clone(n.gpus), Software: inventory.Software{Docker: n.engine}},
		Started:   n.started,
		Drains:    n.drains(),
		Metrics:   config.Metrics{Listen: n.listen},
		Policy:    config.HealthPolicy{Repeats: config.Rate{Count: 3, Hours: 168}, Proof: n.proof},
		Notify:    config.Notify{URL: n.listen},
		Socket:    "/run/docker.sock",
		LoanEnd:   n.loanEnd,
		Replan: func(drains []plan.Drain) (*plan.Plan, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.plan(drains), nil
		},
	}
	r.Plan = n.plan(r.Drains)
	return r, n.err
}

// wait blocks while a method is set to hang.
func (n *fakeNode) wait(method string) {
	n.mu.Lock()
	hang := n.hang[method]
	n.mu.Unlock()
	if hang != nil {
		<-hang
	}
}

func (n *fakeNode) drains() []plan.Drain {
	text, err := os.ReadFile(filepath.Join(n.root, plan.DrainsPath))
	if err != nil {
		return nil
	}
	drains, _ := plan.ParseDrains(text)
	return drains
}

func (n *fakeNode) plan(drains []plan.Drain) *plan.Plan {
	p := &plan.Plan{
		Files: []plan.File{{Path: plan.UnitDir + "/" + unitName, Mode: 0o644, Owner: "root", Slot: -1, Content: unitText}},
		Units: []plan.Unit{{Name: unitName, Slot: -1, Enabled: true, Active: true}},
	}
	for i, g := range n.gpus {
		s := plan.Slot{Index: i, Name: plan.SlotName(i), Parked: n.away[i], GPUs: []plan.SlotGPU{{UUID: g.UUID, PCI: g.PCI, Vendor: g.Vendor}}}
		for _, d := range drains {
			if d.Slot == i {
				s.Drains = append(s.Drains, d)
			}
		}
		agent := plan.AgentUnit(i)
		p.Slots = append(p.Slots, s)
		p.Dirs = append(p.Dirs, plan.Dir{Path: plan.RunDir(i), Mode: 0o755, Owner: "root"})
		p.Files = append(p.Files, plan.File{Path: plan.UnitDir + "/" + agent, Mode: 0o644, Owner: "root", Slot: i, Content: "# " + plan.Marker + "\n[Service]\nType=notify\nKillMode=mixed\n"})
		p.Units = append(p.Units, plan.Unit{Name: agent, Slot: i, Active: s.Serves()})
	}
	return p
}

func (n *fakeNode) GPUs(context.Context) (*health.GPUs, error) {
	n.wait("GPUs")
	n.mu.Lock()
	defer n.mu.Unlock()
	return &health.GPUs{List: slices.Clone(n.gpus)}, nil
}

func (n *fakeNode) Evaluate(ctx context.Context, slot int) (bool, string, error) {
	return n.evaluate(ctx, slot)
}

func (n *fakeNode) Docker(context.Context, string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.onDocker != nil {
		n.onDocker()
	}
	return n.docker
}

// Signals reads the fake's tree. The space on disks and the clock are not the tree's but the
// test machine's, so they are left out.
func (n *fakeNode) Signals(root string, disks, cdiDirs []string) (health.Node, error) {
	n.set(func() { n.disks, n.specs = disks, cdiDirs })
	node, err := signals.ReadNode(root, nil)
	n.set(func() { node.Clock = n.clock })
	return node, err
}

func (n *fakeNode) Stamp(*plan.Plan) string {
	n.wait("Stamp")
	n.mu.Lock()
	defer n.mu.Unlock()
	stamp := n.stamp
	if n.looksAtStamp == 1 {
		n.stamp += "+"
	}
	n.looksAtStamp = max(n.looksAtStamp-1, 0)
	return stamp
}

func (n *fakeNode) Host(context.Context) (*reconcile.Host, func(), error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts++
	return &reconcile.Host{Root: n.root, Systemd: manager{n.sd, n}, Users: systemdtest.Users{Root: n.root}}, func() {}, n.hostErr
}

// manager may refuse to report its units, or hang when Observe asks for them.
type manager struct {
	*systemdtest.Systemd
	n *fakeNode
}

func (s manager) Loaded(ctx context.Context, patterns ...string) ([]string, error) {
	s.n.wait("Observe")
	s.n.mu.Lock()
	err := s.n.loadedErr
	s.n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.Systemd.Loaded(ctx, patterns...)
}

func (s manager) Start(ctx context.Context, names ...string) error {
	s.n.wait("Start")
	return s.Systemd.Start(ctx, names...)
}

func (s manager) Units(ctx context.Context, names ...string) ([]slot.Unit, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	if s.n.unitsErr != nil {
		return nil, s.n.unitsErr
	}
	return s.Systemd.Units(ctx, names...)
}

func (n *fakeNode) Watch(_ context.Context, changed func(string)) (func() bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watches++
	n.dead, n.changed = false, changed
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.dead
	}, nil
}

func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *fakeNode) count() (reads, observations, watches int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reads, n.hosts, n.watches
}

// bubble runs a test of a node whose clock advances only when all goroutines sleep.
func bubble(t *testing.T, test func(t *testing.T, n *fakeNode)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newFakeNode(t)) })
}

// later waits until the daemon has done what it does in this time.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// running starts a daemon in a bubble, whose clock advances only when all goroutines sleep.
func running(t *testing.T, n *fakeNode, o Options) (log events.Log, wake chan struct{}) {
	t.Helper()
	wake = make(chan struct{})
	log = events.Log{File: filepath.Join(n.root, "/var/lib/kbnode/events.jsonl")}
	o.Node, o.Events, o.Wake, o.Root = n, log, wake, n.root
	if o.Clock == nil {
		o.Clock = clock()
	}
	if o.Kmsg.Path == "" {
		o.Kmsg.Path = os.DevNull
	}
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { Run(ctx, o); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return log, wake
}

func (n *fakeNode) unit(t *testing.T) string {
	t.Helper()
	return must.Read(t, filepath.Join(n.root, plan.UnitDir, unitName))
}

func (n *fakeNode) repaired(t *testing.T, when string) {
	t.Helper()
	if text := n.unit(t); text != unitText {
		t.Errorf("%s: %q", when, text)
	}
}

func (n *fakeNode) spoil(t *testing.T) {
	t.Helper()
	must.Do(t, os.WriteFile(filepath.Join(n.root, plan.UnitDir, unitName), []byte("# "+plan.Marker+"\nby hand\n"), 0o600))
}

func kinds(t *testing.T, l events.Log) (all []string) {
	t.Helper()
	must.Do(t, l.Read(func(e events.Event) { all = append(all, e.Kind+": "+e.Text) }))
	return all
}

func TestDriftIsRepaired(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		log, _ := running(t, n, Options{})
		n.repaired(t, "at its start")
		first := kinds(t, log)
		if !slices.Contains(first, "changed: start "+unitName) {
			t.Errorf("events of the start: %q", first)
		}

		// With nothing to do it looks, and neither reads everything nor writes.
		later(2 * time.Minute)
		if reads, observations, _ := n.count(); reads != 1 || observations < 4 {
			t.Errorf("%d reads, %d observations in two minutes without a change", reads, observations)
		}
		must.Equal(t, first, kinds(t, log))

		n.spoil(t)
		later(30 * time.Second)
		n.repaired(t, "after 30 s")

		n.spoil(t)
		n.changed(unitName)
		n.changed(unitName)
		later(time.Second)
		n.repaired(t, "a second after systemd's signal")
		if reads, _, _ := n.count(); reads != 1 {
			t.Errorf("%d reads, want none for a drift", reads)
		}

		// Another kbnode wrote a configuration just before the lock was acquired.
		n.spoil(t)
		n.set(func() { n.looksAtStamp = 1 })
		n.changed(unitName)
		later(time.Second)
		if reads, _, _ := n.count(); reads != 2 || n.unit(t) != unitText {
			t.Errorf("%d reads, want one for another configuration; %q", reads, n.unit(t))
		}
	})
}

func TestWhatMakesItReadAnew(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		_, wake := running(t, n, Options{})
		reads := func(why string, want int) {
			t.Helper()
			synctest.Wait()
			if got, _, _ := n.count(); got != want {
				t.Errorf("%s: %d reads, want %d", why, got, want)
			}
		}
		reads("start", 1)
		n.set(func() { n.stamp = "another configuration" })
		time.Sleep(30 * time.Second)
		reads("a changed file", 2)
		wake <- struct{}{}
		reads("SIGHUP", 3)
		time.Sleep(5*time.Minute + 30*time.Second)
		reads("five minutes", 4)
	})
}

// A configuration that changes while everything is read is read again at the next look,
// also in the first pass.
func TestChangeWhileReading(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.onRead = func() { n.set(func() { n.stamp = fmt.Sprint("while read ", min(n.reads, 1)) }) } // twice
		_, _ = running(t, n, Options{})
		for i, want := range []int{1, 2, 3, 3} {
			if reads, _, _ := n.count(); reads != want {
				t.Errorf("look %d: %d reads, want %d", i, reads, want)
			}
			later(30 * time.Second)
		}
	})
}

func TestErrorsAreToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.err = errors.New("nothing was changed: Docker does not answer")
		var mu sync.Mutex
		var said []string
		log, _ := running(t, n, Options{Notify: func(s string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(s, "STATUS") {
				said = append(said, s)
			}
		}})
		later(10 * time.Minute)
		// 5 s, 10 s, 20 s, then every 30 s.
		if reads, _, _ := n.count(); reads < 20 || reads > 24 {
			t.Errorf("%d tries in ten minutes", reads)
		}
		n.set(func() { n.err = nil })
		later(31 * time.Second)
		got := kinds(t, log)
		want := []string{"error: nothing was changed: Docker does not answer"}
		if diff := cmp.Diff(want, got[:1]); diff != "" || !slices.Contains(got, "recovered: the node can be reconciled again") || len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, "error") })) != 1 {
			t.Errorf("events %q", got)
		}
		if len(said) != 2 {
			t.Errorf("said %q", said)
		}
		n.repaired(t, "after the end of the error")
	})
}

func TestLockedNodeIsPutOff(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		lock := func() (release func()) {
			t.Helper()
			release, err := (&reconcile.Host{Root: n.root}).Lock()
			must.Do(t, err)
			return release
		}
		release := lock()
		log, _ := running(t, n, Options{})
		time.Sleep(time.Minute)
		if got := kinds(t, log); len(got) > 0 {
			t.Errorf("events while another kbnode works: %q", got)
		}
		release()
		later(31 * time.Second)
		n.repaired(t, "after that")

		// A drift may be what the other kbnode is about to write.
		release = lock()
		n.spoil(t)
		later(time.Minute)
		if n.unit(t) == unitText {
			t.Error("a drift is repaired while another kbnode works")
		}
		release()
		later(31 * time.Second)
		n.repaired(t, "a drift after that")
	})
}

func TestLostConnection(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		running(t, n, Options{})
		n.set(func() { n.dead = true })
		later(31 * time.Second)
		if _, _, watches := n.count(); watches != 2 {
			t.Errorf("listened %d times, want again after the connection was lost", watches)
		}
		n.spoil(t)
		n.changed(unitName)
		later(time.Second)
		n.repaired(t, "after that nobody listens")
	})
}

// TestReplaced checks that Run ends when kbnode was replaced, and not before.
func TestReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		var mu sync.Mutex
		var there bool
		var words []string
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			Run(ctx, Options{
				Node: n, Root: n.root, Kmsg: signals.Kmsg{Path: os.DevNull},
				Replaced: func() bool {
					mu.Lock()
					defer mu.Unlock()
					return there
				},
				Notify: func(s string) { words = append(words, s) },
			})
		}()
		time.Sleep(5 * time.Minute)
		select {
		case <-done:
			t.Fatal("it ended by itself")
		default:
		}
		mu.Lock()
		there = true
		mu.Unlock()
		time.Sleep(31 * time.Second)
		<-done
		if words[0] != "READY=1" || words[len(words)-1] != "STOPPING=1" || !slices.Contains(words, "WATCHDOG=1") {
			t.Errorf("said %q", words)
		}
	})
}

func TestManyChangesAreFewEvents(t *testing.T) {
	t.Parallel()
	d := newDaemon(Options{Root: t.TempDir(), Events: events.Log{File: filepath.Join(t.TempDir(), "e")}})
	var applied []reconcile.Change
	for i := range 30 {
		applied = append(applied, reconcile.Change{Kind: reconcile.Create, Subject: fmt.Sprint(i), Slot: i})
	}
	d.keep(applied)
	got := kinds(t, d.Events)
	if len(got) != maxChanges+1 || got[maxChanges] != "changed: and 20 more changes" {
		t.Errorf("%d events, the last %q", len(got), got[len(got)-1])
	}
}

// TestPublish checks that every pass is published: full ones, looks and failures.
func TestPublish(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		n.listen = "127.0.0.1:9700"
		var mu sync.Mutex
		var all []Snapshot
		last := func() (int, Snapshot) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return len(all), all[len(all)-1]
		}
		_, wake := running(t, n, Options{Publish: func(s Snapshot) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s)
		}})
		count, s := last()
		if count != 1 || !s.Whole || s.Err != nil || s.State == nil || len(s.Plan.Slots) != 2 || len(s.Applied) == 0 || s.Began.IsZero() || s.Metrics.Listen != n.listen || s.Notify.URL != n.listen {
			t.Errorf("%d at the start: %+v", count, s)
		}
		parked := filepath.Join(n.root, plan.RunDir(1), "parked")
		must.Do(t, os.MkdirAll(parked, 0o755))
		must.Do(t, os.WriteFile(filepath.Join(parked, "gpu.json"), []byte(`{"reason":"its GPU is in use"}`), 0o600))
		time.Sleep(31 * time.Second)
		count, s = last()
		if count < 2 || s.Whole || s.Err != nil || s.State == nil || len(s.Applied) != 0 || s.Metrics.Listen != n.listen {
			t.Errorf("%d after a look: %+v", count, s)
		}
		if got := s.State.Slots; len(got) != 2 || len(got[0].Parked) != 0 || len(got[1].Parked) != 1 {
			t.Errorf("parked: %+v", got)
		}

		n.set(func() { n.err, n.listen = errors.New("a key that nobody knows"), "" })
		wake <- struct{}{}
		_, s = last()
		if !s.Whole || s.Err == nil || s.State != nil || s.Plan == nil || s.Metrics.Listen != "127.0.0.1:9700" {
			t.Errorf("after a pass that failed: %+v", s)
		}
		n.set(func() { n.err = nil })
		time.Sleep(31 * time.Second)
		_, s = last()
		if s.Err != nil || s.Metrics.Listen != "" {
			t.Errorf("after that: %+v", s)
		}
	})
}
