package firewall

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if got, err := Read(root); err != nil || got.Slots != nil {
		t.Errorf("a tree without users: %v, %v", got, err)
	}
	must.Write(t, root, "etc/passwd", `root:x:0:0::/root:/bin/sh
kbnode-gpu10:x:995:994::/:/usr/sbin/nologin
kbnode-gpu:x:1:1::/:/
kbnode-gpu07:x:2:2::/:/
kbnode-gpu-1:x:3:3::/:/
kbnode-gpu1x:x:4:4::/:/
7:x:5:5::/:/
kbnode-gpu2
kbnode-gpu1:x:996:995::/:/usr/sbin/nologin
`)
	got, err := Read(root)
	must.Do(t, err)
	must.Equal(t, []Slot{{"kbnode-gpu1", true}, {"kbnode-gpu10", true}}, got.Slots)
}

func TestRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must.Write(t, root, "etc/resolv.conf", "# nameserver 192.0.2.9\nnameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver\nnameserver fe80::1%eth0\nnameserver x\noptions edns0\n")
	must.Write(t, root, "run/systemd/resolve/resolv.conf", "nameserver 10.0.0.2\nnameserver ::ffff:10.0.0.3\n")
	must.Write(t, root, "etc/docker/daemon.json", `{"dns": ["10.9.9.9", "0.0.0.0"], "other": 1}`)
	users := ""
	for k, text := range []string{
		`{"network": "bridge"}`,
		`{"network": "none"}`,
		`{"network": "internet", "allowed_networks": ["10.2.0.0/16:443", "10.1.2.3", "x", "fd00::/8", "10.1.2.3/32"]}`,
		`{"network": "bridge", "future": 1}`,
		"", // no file
	} {
		if text != "" {
			must.Write(t, root, plan.SlotPolicyPath(k), fmt.Sprintf(`{"slot": %d, %s`, k, text[1:]))
		}
		users += plan.UserName(k) + ":x:990:990::/:/bin/sh\n"
	}
	read := func() Node {
		n, err := Read(root)
		must.Do(t, err)
		return n
	}
	must.Write(t, root, "etc/passwd", users)
	want := Node{
		Allowed:   []config.Destination{destination("10.1.2.3"), destination("10.2.0.0/16:443")},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.9.9.9")},
	}
	for k, internet := range []bool{false, false, true, false, true} { // what cannot be read opens nothing
		want.Slots = append(want.Slots, Slot{plan.NetworkName(k), internet})
	}
	must.Equal(t, want, read(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
	must.Write(t, root, "etc/passwd", plan.UserName(0)+":x:990:990::/:/bin/sh\n")
	if got := read(); got.Resolvers != nil {
		t.Errorf("the rules of a node where no slot has the Internet only depend on %v", got.Resolvers)
	}
}

// TestInternet sends packets of a slot with only the Internet, beside one with more.
func TestInternet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := example
	n.Slots = slices.Clone(twoSlots)
	n.Slots[0].Internet = true
	r.node.in(func() {
		must.Do(t, n.Ensure())
	})
	// What slots reach beyond the node's link, on ports 53, 80 and proxy.
	none, all := map[int]bool{53: no, 80: no}, map[int]bool{53: yes, 80: yes, proxy: yes}
	ways := map[string]map[int]bool{
		"192.0.2.2": all, "203.0.113.1": all, // documentation addresses, in place of the Internet
		"10.1.2.3": all, "10.200.0.1": none,
		"100.64.7.7": none, "172.31.255.1": none, "198.19.255.9": none, "192.168.77.8": none,
		"192.168.77.7":    {80: yes, 53: no, proxy: no},
		"172.16.0.53":     {53: yes, 80: no},
		"169.254.169.254": none,
	}
	var rows []way
	for to, ports := range ways {
		rows = append(rows,
			way{"a job to " + to, r.job, to, ports, refusedAtOnce},
			way{"the node to " + to, r.node, to, map[int]bool{53: yes, 80: yes}, false},
			way{"the other slot's job to " + to, r.neighbour, to, map[int]bool{53: yes, 80: to != "169.254.169.254"}, false})
	}
	rows = append(rows, []way{
		{"a job to its slot's other container", r.job, "198.18.0.3", all, false},
		{"a job to its neighbour", r.job, "198.18.1.2", none, refusedAtOnce},
		{"a job to another container", r.job, "172.30.0.2", none, refusedAtOnce},
		{"a job to what the node publishes", r.job, "192.0.2.1", map[int]bool{8080: no}, false},
		{"a job to the node", r.job, "192.0.2.1", map[int]bool{53: yes, 80: no}, refusedAtOnce},
		{"the outside to a job", r.external, "198.18.0.2", none, false},
	}...)
	try(t, rows)
}

// namespace is a network namespace on its own thread.
type namespace struct {
	thread int
	do     chan func()
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{do: make(chan func())}
	ready := make(chan error)
	go func() {
		// The thread ends with this goroutine, and the namespace with it.
		runtime.LockOSThread()
		n.thread = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range n.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(n.do)
		t.Skipf("no network namespace, which only root gets: %v", err)
	}
	t.Cleanup(func() { close(n.do) })
	return n
}

// in runs f in the namespace.
func (n *namespace) in(f func()) {
	done := make(chan struct{})
	n.do <- func() { defer close(done); f() }
	<-done
}

// sh runs a command line in the namespace; @name is replaced with another namespace.
func (n *namespace) sh(t *testing.T, script string, others ...*namespace) {
	t.Helper()
	for i, o := range others {
		script = strings.ReplaceAll(script, fmt.Sprintf("@%d", i), fmt.Sprint(o.thread))
	}
	n.in(func() {
		if out, err := exec.Command("sh", "-euc", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}
