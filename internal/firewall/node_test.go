package firewall

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
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
