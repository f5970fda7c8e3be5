package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/machinetest"
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
	root, err := os.MkdirTemp("/dev/shm", "kbnode-bench-") //nolint:usetesting // tb.TempDir is on a disk
	if err != nil {
		root = tb.TempDir()
	}
	serverOf(slots).Write(tb, root)
	m := &node.Node{Root: root, Log: Streams{Err: tb.Output()}.logger()}
	if err := m.Read(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	sd, err := systemdtest.New(root, m.Inventory.CPU.Online, "0-1")
	if err != nil {
		tb.Fatal(err)
	}
	return &testNode{root, sd, &reconcile.Host{Root: root, Systemd: sd, Users: systemdtest.Users{Root: root}}}
}

func (n *testNode) remove(tb testing.TB) {
	if err := os.RemoveAll(n.root); err != nil {
		tb.Error(err)
	}
}

// think reads the machine and plans it, as every command does.
func (n *testNode) think(ctx context.Context, w configFlags) (*plan.Plan, *reconcile.State, []reconcile.Change, error) {
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
	p, state, changes, err := n.think(ctx, w)
	if err != nil {
		return err
	}
	if _, err := node.WriteToken(n.host, token); err != nil {
		return err
	}
	_, err = n.host.Apply(ctx, p, state, changes)
	return err
}

// fleet plays the agents of a node: each unit that is started registers with Buildkite and
// connects, as its configuration on disk says.
type fleet struct {
	root string
	wait sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

var (
	agentUnit = regexp.MustCompile(`buildkite-agent-gpu(\d+)\.service`)
	setting   = regexp.MustCompile(`(?m)^([a-z-]+)="(.*)"$`)
)

// said starts the agents whose units a call to systemd starts.
func (f *fleet) said(word string) error {
	if !strings.HasPrefix(word, "start ") {
		return nil
	}
	for _, m := range agentUnit.FindAllStringSubmatch(word, -1) {
		k, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		f.wait.Go(func() {
			if err := f.connect(k); err != nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.errs = append(f.errs, fmt.Errorf("agent %d: %w", k, err))
			}
		})
	}
	return nil
}

func (f *fleet) connect(k int) error {
	text, err := os.ReadFile(filepath.Join(f.root, plan.AgentDir(k), "buildkite-agent.cfg"))
	if err != nil {
		return err
	}
	cfg := map[string]string{}
	for _, m := range setting.FindAllStringSubmatch(string(text), -1) {
		cfg[m[1]] = m[2]
	}
	token, err := agent.ReadToken(filepath.Join(f.root, plan.TokenPath))
	if err != nil {
		return err
	}
	var registered struct {
		Token string `json:"access_token"`
	}
	request := map[string]any{"name": cfg["name"], "hostname": "bench", "version": plan.PinnedAgentVersion, "meta_data": strings.Split(cfg["tags"], ",")}
	if err := post(cfg["endpoint"]+"/register", token, request, &registered); err != nil {
		return err
	}
	// The slot's guard does this.
	if err := slot.Register(filepath.Join(f.root, plan.RunDir(k))); err != nil {
		return err
	}
	return post(cfg["endpoint"]+"/connect", registered.Token, map[string]any{}, nil)
}

func post(url, token string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Token "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// serve starts a fake Buildkite for the agents of a node.
func (n *testNode) serve(tb testing.TB) (*fleet, *bktest.Server) {
	tb.Helper()
	f := &fleet{root: n.root}
	n.sd.Hook = f.said
	bk := bktest.New(bktest.Options{Queues: []string{"b200"}})
	if err := bk.Listen("127.0.0.1:0"); err != nil {
		tb.Fatal(err)
	}
	return f, bk
}

// connected waits for the agents that were started, and returns how many are connected to
// Buildkite.
func (f *fleet) connected(bk *bktest.Server) (int, error) {
	f.wait.Wait()
	n := 0
	for _, a := range bk.Agents() {
		if a.ConnectionState == "connected" {
			n++
		}
	}
	return n, errors.Join(f.errs...)
}

// TestInstallOnATree runs install, status and a second install on a machine of files. test/vm
// tests what only a real machine shows.
func TestInstallOnATree(t *testing.T) {
	t.Parallel()
	const slots = 4
	n := newNode(t, slots)
	defer n.remove(t)
	f, bk := n.serve(t)
	defer func() { _ = bk.Close() }()
	if err := n.install(t.Context(), bk.Endpoint(), bktest.DefaultAgentToken); err != nil {
		t.Fatal(err)
	}
	if got, err := f.connected(bk); got != slots || err != nil {
		t.Fatalf("%d agents connected, want %d: %v", got, slots, err)
	}
	for k, a := range bk.Agents() {
		if !slices.Contains(a.MetaData, "queue=b200") || !strings.HasPrefix(a.Name, "bench-gpu") {
			t.Errorf("agent %d is %s with tags %v", k, a.Name, a.MetaData)
		}
	}
	var said strings.Builder
	n.sd.Words()
	p, state, changes, err := n.think(t.Context(), configFlags{})
	if err != nil || len(changes) > 0 || len(n.sd.Words()) > 0 {
		t.Errorf("after an install %d changes are left, %v: %v", len(changes), err, changes)
	}
	if st := node.StatusOf(p, state, changes); st.Disagrees() || st.Slots[3].Agent != "idle" {
		t.Errorf("status: %+v", st)
	}
	if err := waitRegistered(t.Context(), Streams{Err: &said}, p, n.host, nil); err != nil || said.String() != "  4 of 4 agents registered\n" {
		t.Errorf("registered: %v, said %q", err, said.String())
	}

	// If Buildkite refuses an agent, the wait ends with the agent's name. An agent that says
	// nothing is waited for.
	if err := n.sd.Fail(plan.AgentUnit(2)); err != nil {
		t.Fatal(err)
	}
	waits := []reconcile.Change{{Kind: reconcile.Start, Slot: 2, Deferred: "waits for job 7 of slot gpu1"}}
	if err := waitRegistered(t.Context(), Streams{Err: io.Discard}, p, n.host, waits); err != nil {
		t.Errorf("a slot that waits for a job is waited for: %v", err)
	}
	if err := waitRegistered(t.Context(), Streams{Err: &said}, p, n.host, nil); err == nil || !strings.Contains(err.Error(), "agent of slot gpu2 ended at once") || strings.Contains(err.Error(), "gpu1") {
		t.Errorf("refused: %v", err)
	}
	if err := errors.Join(n.sd.Start(t.Context(), plan.AgentUnit(2)), os.Remove(filepath.Join(n.root, slot.RegisteredMarker(1)))); err != nil {
		t.Fatal(err)
	}
	if err := slot.Register(filepath.Join(n.root, plan.RunDir(2))); err != nil { // again
		t.Fatal(err)
	}
	said.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	err = waitRegistered(ctx, Streams{Err: writerFunc(func(p []byte) (int, error) {
		cancel()
		return said.Write(p)
	})}, p, n.host, nil)
	if !errors.Is(err, context.Canceled) || said.String() != "  3 of 4 agents registered\n" {
		t.Errorf("one silent: %v, said %q", err, said.String())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
