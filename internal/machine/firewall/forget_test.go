package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// listen takes a UDP port of a namespace's address.
func listen(t *testing.T, ns *namespace, address string) (c *net.UDPConn) {
	t.Helper()
	ns.in(func() {
		l, err := net.ListenPacket("udp4", address)
		must.Do(t, err)
		c = l.(*net.UDPConn)
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// gets reports whether a packet from one arrives at the other.
func gets(t *testing.T, from, to *net.UDPConn, patience time.Duration) bool {
	t.Helper()
	_, err := from.WriteTo([]byte("x"), to.LocalAddr())
	must.Do(t, err)
	must.Do(t, to.SetReadDeadline(time.Now().Add(patience)))
	n, _, err := to.ReadFrom(make([]byte, 8))
	return n == 1 && err == nil
}

// TestForget sends to a port from which an earlier job has sent: it arrives, as that connection is established, until it
// is forgotten. Those of other slots go on, also among many.
func TestForget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node.in(func() { must.Do(t, (Node{Slots: twoSlots}).Ensure()) })
	remote := listen(t, r.external, "192.0.2.2:7777")
	job, neighbor := listen(t, r.job, "198.18.0.2:5555"), listen(t, r.neighbour, "198.18.1.2:5555")
	for i := range 2000 { // more than one buffer of the kernel's
		other := listen(t, r.neighbour, fmt.Sprintf("198.18.1.2:%d", 20000+i))
		_, err := other.WriteTo([]byte("y"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:9")))
		must.Do(t, err)
		_ = other.Close()
	}
	if !gets(t, job, remote, long) || !gets(t, neighbor, remote, long) {
		t.Fatal("no packet goes out")
	}
	must.Do(t, job.Close())
	next := listen(t, r.job, "198.18.0.2:5555")
	if !gets(t, remote, next, long) {
		t.Error("the outside does not reach the port: nothing is to be forgotten")
	}
	for range 2 { // the second time there is nothing
		r.node.in(func() { must.Do(t, Forget([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")})) })
		if gets(t, remote, next, 300*time.Millisecond) {
			t.Error("the outside reaches the next job's port")
		}
	}
	if !gets(t, remote, neighbor, long) {
		t.Error("the neighbor's connection is gone")
	}
	if !gets(t, next, remote, long) || !gets(t, remote, next, long) {
		t.Error("the next job has no connections of its own")
	}
}
