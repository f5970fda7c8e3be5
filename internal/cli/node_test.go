package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

const agentBinary = "/usr/bin/buildkite-agent"

// serverOf returns a server with n GPUs on two sockets, with eight cores for each.
func serverOf(n int) machinetest.Machine {
	m := machinetest.Machine{
		Name: "bench", Model: "of a benchmark", Packages: 2, Nodes: 1, Cores: max(8, 8*(n+1)/2) + 8, Threads: 2, CoresPerL3: 8,
		NodeBytes: int64(n+1) * (32 << 30), NVIDIADriver: "580.95.05",
		Files: map[string]string{agentBinary[1:]: "#!/bin/sh\n"},
	}
	for i := range n {
		m.NVIDIA = append(m.NVIDIA, machinetest.NVIDIA{
			PCI: fmt.Sprintf("0000:%02x:00.0", i+1), Device: "2901", Model: "NVIDIA B200", Minor: i, Node: i * 2 / max(2, n),
			UUID: fmt.Sprintf("GPU-29010000-0000-4000-8000-%012x", i+1),
		})
	}
	m.Live = machinetest.Live(m)
	return m
}

// testNode is a server in memory with a systemd that records its calls.
type testNode struct {
	root string
	sd   *systemdtest.Systemd
	host *reconcile.Host
}

func newNode(tb testing.TB, slots int) *testNode {
	tb.Helper()
	root := must.MemoryDir(tb)
	serverOf(slots).Write(tb, root)
	m := &node.Node{Root: root, Log: term.Streams{Err: tb.Output()}.Logger()}
	must.Do(tb, m.Read(tb.Context()))
	sd, err := systemdtest.New(root, m.Inventory.CPU.Online, "0-1")
	must.Do(tb, err)
	return &testNode{root, sd, &reconcile.Host{Root: root, Systemd: sd, Users: systemdtest.Users{Root: root}}}
}

// compare reads the machine and plans it, as every command does.
func (n *testNode) compare(ctx context.Context, w configFlags) (*plan.Plan, *reconcile.State, []reconcile.Change, error) {
	m := &node.Node{Root: n.root}
	if err := w.load(m, func(string) string { return "" }); err != nil {
		return nil, nil, nil, err
	}
	if err := m.Read(ctx); err != nil {
		return nil, nil, nil, err
	}
	if err := m.MakePlan(); err != nil {
		return nil, nil, nil, err
	}
	state, err := n.host.Observe(ctx, m.Plan)
	if err != nil {
		return nil, nil, nil, err
	}
	return m.Plan, state, reconcile.Diff(m.Plan, state), nil
}

// install changes the node as kbnode install would.
func (n *testNode) install(ctx context.Context, endpoint, token string) error {
	w := configFlags{cfg: config.Config{Queue: "b200", Node: "bench", Agent: config.Agent{Endpoint: endpoint}}}
	p, state, changes, err := n.compare(ctx, w)
	if err != nil {
		return err
	}
	if _, err := node.WriteToken(n.host, token); err != nil {
		return err
	}
	_, err = n.host.Apply(ctx, p, state, changes)
	return err
}

var (
	agentUnit = regexp.MustCompile(`buildkite-agent-gpu(\d+)\.service`)
	setting   = regexp.MustCompile(`(?m)^([a-z-]+)="(.*)"$`)
)

// serve starts a fake Buildkite, with which the agents of units that systemd starts register.
func (n *testNode) serve(tb testing.TB) *bktest.Server {
	tb.Helper()
	bk := bktest.New(bktest.Options{Queues: []string{"b200"}})
	must.Do(tb, bk.Listen("127.0.0.1:0"))
	n.sd.Hook = func(call string) error {
		if !strings.HasPrefix(call, "start ") {
			return nil
		}
		var errs []error
		for _, m := range agentUnit.FindAllStringSubmatch(call, -1) {
			k, err := strconv.Atoi(m[1])
			errs = append(errs, err, n.connect(tb.Context(), bk, k))
		}
		return errors.Join(errs...)
	}
	return bk
}

// connect registers the agent of a slot as its configuration on disk says.
func (n *testNode) connect(ctx context.Context, bk *bktest.Server, k int) error {
	text, err := os.ReadFile(filepath.Join(n.root, plan.AgentDir(k), "buildkite-agent.cfg"))
	if err != nil {
		return err
	}
	cfg := map[string]string{}
	for _, m := range setting.FindAllStringSubmatch(string(text), -1) {
		cfg[m[1]] = m[2]
	}
	token, err := agent.ReadToken(filepath.Join(n.root, plan.TokenPath))
	if err == nil && (token != bktest.DefaultAgentToken || cfg["endpoint"] != bk.Endpoint()) {
		err = fmt.Errorf("agent %d has the token %s for %s", k, token, cfg["endpoint"])
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop() // it stays connected, and asks for no job
	// Its hook notes it, too, where the slot was cleared.
	run := filepath.Join(n.root, plan.RunDir(k))
	return errors.Join(bk.Employ(ctx, bktest.Worker{Name: cfg["name"], Tags: strings.Split(cfg["tags"], ",")}),
		os.MkdirAll(run, 0o700), os.WriteFile(filepath.Join(run, slot.RegisteredName), nil, 0o600))
}

// TestInstallOnATree runs install, status and a second install on a machine of files. test/vm
// tests what only a real machine shows.
func TestInstallOnATree(t *testing.T) {
	t.Parallel()
	const slots = 4
	n := newNode(t, slots)
	bk := n.serve(t)
	defer func() { _ = bk.Close() }()
	must.Do(t, n.install(t.Context(), bk.Endpoint(), bktest.DefaultAgentToken))
	must.Equal(t, slots, len(bk.Agents()))
	for k, a := range bk.Agents() {
		if a.ConnectionState != "connected" || !slices.Contains(a.MetaData, "queue=b200") || !strings.HasPrefix(a.Name, "bench-gpu") {
			t.Errorf("agent %d is %s with tags %v", k, a.Name, a.MetaData)
		}
	}
	var said strings.Builder
	n.sd.Words()
	p, state, changes, err := n.compare(t.Context(), configFlags{})
	if err != nil || len(changes) > 0 || len(n.sd.Words()) > 0 {
		t.Errorf("after an install %d changes are left, %v: %v", len(changes), err, changes)
	}
	if st := node.StatusOf(p, state, changes); st.Disagrees() || st.Slots[3].Agent != "idle" {
		t.Errorf("status: %+v", st)
	}
	if err := waitRegistered(t.Context(), term.Streams{Err: &said}, p, n.host, nil, time.Minute); err != nil || said.String() != "  4 of 4 agents registered\n" {
		t.Errorf("registered: %v, said %q", err, said.String())
	}

	// If Buildkite refuses an agent, the wait ends with the agent's name. An agent that says
	// nothing is waited for.
	must.Do(t, n.sd.Fail(plan.AgentUnit(2)))
	waits := []reconcile.Change{{Kind: reconcile.Start, Slot: 2, Deferred: "waits for job 7 of slot gpu1"}}
	if err := waitRegistered(t.Context(), term.Streams{Err: io.Discard}, p, n.host, waits, time.Minute); err != nil {
		t.Errorf("a slot that waits for a job is waited for: %v", err)
	}
	if err := waitRegistered(t.Context(), term.Streams{Err: &said}, p, n.host, nil, time.Minute); err == nil || !strings.Contains(err.Error(), "agent of slot gpu2 ended at once") || strings.Contains(err.Error(), "gpu1") {
		t.Errorf("refused: %v", err)
	}
	must.Do(t, errors.Join(n.sd.Start(t.Context(), plan.AgentUnit(2)), os.Remove(filepath.Join(n.root, slot.RegisteredMarker(1)))))
	must.Do(t, os.WriteFile(filepath.Join(n.root, slot.RegisteredMarker(2)), nil, 0o600)) // again
	said.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	err = waitRegistered(ctx, term.Streams{Err: writerFunc(func(p []byte) (int, error) {
		cancel()
		return said.Write(p)
	})}, p, n.host, nil, time.Minute)
	if !errors.Is(err, context.Canceled) || said.String() != "  3 of 4 agents registered\n" {
		t.Errorf("one silent: %v, said %q", err, said.String())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// slotCounts are the sizes of node that benchmarks compare: one GPU, a usual server, and more
// than any server has.
var slotCounts = []int{1, 8, 64}

// benchNode measures a step on nodes that are as planned: it changes nothing.
func benchNode(b *testing.B, step func(b *testing.B, n *testNode, p *plan.Plan) []reconcile.Change) {
	for _, slots := range slotCounts {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			n := newNode(b, slots)
			must.Do(b, n.install(b.Context(), "http://127.0.0.1:1/v3", "the-token"))
			p, _, _, err := n.compare(b.Context(), configFlags{})
			must.Do(b, err)
			n.sd.Words()
			for b.Loop() {
				if changes := step(b, n, p); len(changes) > 0 {
					b.Fatalf("%d changes: %v", len(changes), changes)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(slots), "µs/slot")
			if words := n.sd.Words(); len(words) > 0 {
				b.Fatalf("words were said: %v", words)
			}
		})
	}
}

// BenchmarkNoop measures a full pass of the daemon on a node that is as planned, from the first
// file of /sys to the empty list of changes. The target is 100 ms for 8 slots, and no more than
// linear growth.
func BenchmarkNoop(b *testing.B) {
	benchNode(b, func(b *testing.B, n *testNode, _ *plan.Plan) []reconcile.Change {
		_, _, changes, err := n.compare(b.Context(), configFlags{})
		must.Do(b, err)
		return changes
	})
}

// BenchmarkLook measures the daemon's look every 30 seconds on a node that is as planned. At 8
// slots 0.1 % of a CPU is 30 ms.
func BenchmarkLook(b *testing.B) {
	benchNode(b, func(b *testing.B, n *testNode, p *plan.Plan) []reconcile.Change {
		state, err := n.host.Observe(b.Context(), p)
		must.Do(b, err)
		return reconcile.Diff(p, state)
	})
}
