package firewall

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write testdata again")

func TestText(t *testing.T) {
	t.Parallel()
	golden := filepath.Join("testdata", "kbnode.nft")
	if *update {
		must.Do(t, os.WriteFile(golden, []byte(example.text()), 0o600))
	}
	must.Equal(t, must.Read(t, golden), example.text())
}

// neighborhood are addresses beyond the node's link that are not on the Internet.
var neighborhood = []string{
	"10.1.2.3/32", "10.200.0.1/32", "100.64.7.7/32", "172.16.0.53/32", "172.31.255.1/32", "192.168.77.7/32", "192.168.77.8/32", "198.19.255.9/32",
	"203.0.113.1/32",
}

const proxy = 3128 // any other port

var twoSlots = []Slot{{Bridge: "kbnode-gpu0"}, {Bridge: "kbnode-gpu1"}}

// example is a node with some of everything that the rules depend on.
var example = Node{
	Slots:     twoSlots,
	Allowed:   []config.Destination{destination("10.0.0.0/9"), destination("192.168.77.7:80")},
	Resolvers: []netip.Addr{netip.MustParseAddr("172.16.0.53"), netip.MustParseAddr("172.16.0.54")},
}

func destination(s string) config.Destination {
	d, err := config.ParseDestination(s)
	if err != nil {
		panic(err)
	}
	return d
}

// rig is a node with two slots, two containers in the first, another bridge such as
// Docker's, and a machine outside that also has the metadata address.
type rig struct{ node, job, sibling, neighbour, other, external *namespace }

func newRig(t *testing.T) rig {
	t.Helper()
	r := rig{newNamespace(t), newNamespace(t), newNamespace(t), newNamespace(t), newNamespace(t), newNamespace(t)}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip")
	}
	r.node.sh(t, `ip link set lo up
		for k in 0 1; do
			ip link add kbnode-gpu$k type bridge; ip addr add 198.18.$k.1/24 dev kbnode-gpu$k; ip link set kbnode-gpu$k up
		done
		ip link add docker9 type bridge; ip addr add 172.30.0.1/24 dev docker9; ip link set docker9 up
		ip link add outside type veth peer name eth0 netns @4; ip addr add 192.0.2.1/24 dev outside; ip link set outside up
		ip route add 169.254.169.254 via 192.0.2.2
		i=0; for to in kbnode-gpu0:@0 kbnode-gpu0:@1 kbnode-gpu1:@2 docker9:@3; do
			i=$((i + 1)); ip link add v$i type veth peer name eth0 netns ${to#*:}; ip link set v$i master ${to%:*} up
		done
		echo 1 >/proc/sys/net/ipv4/ip_forward`, r.job, r.sibling, r.neighbour, r.other, r.external)
	for ns, net := range map[*namespace][2]string{
		r.job: {"198.18.0.2", "198.18.0.1"}, r.sibling: {"198.18.0.3", "198.18.0.1"}, r.neighbour: {"198.18.1.2", "198.18.1.1"},
		r.other: {"172.30.0.2", "172.30.0.1"}, r.external: {"192.0.2.2", "192.0.2.1"},
	} {
		ns.sh(t, `ip link set lo up; ip addr add `+net[0]+`/24 dev eth0; ip link set eth0 up; ip route add default via `+net[1])
	}
	r.external.sh(t, `for a in 169.254.169.254 `+strings.Join(neighborhood, " ")+`; do ip addr add $a dev lo; done`)
	r.node.sh(t, `ip route add default via 192.0.2.2`)
	for _, ns := range []*namespace{r.node, r.job, r.sibling, r.neighbour, r.other, r.external} {
		for _, port := range []int{53, 80, proxy} {
			serve(t, ns, port)
		}
	}
	// A container's port that the node publishes, as Docker does.
	r.node.in(func() {
		conn := &nftables.Conn{}
		nat := conn.AddTable(&nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4})
		pre := conn.AddChain(&nftables.Chain{Name: "pre", Table: nat, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		conn.AddRule(&nftables.Rule{Table: nat, Chain: pre, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{6}),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equals([]byte{8080 >> 8, 8080 & 0xff}),
			&expr.Immediate{Register: 1, Data: []byte{172, 30, 0, 2}}, &expr.Immediate{Register: 2, Data: []byte{0, 80}},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: 2, RegAddrMin: 1, RegAddrMax: 1, RegProtoMin: 2, RegProtoMax: 2, Specified: true},
		}})
		must.Do(t, conn.Flush())
	})
	return r
}

// serve answers on a port by TCP, and by UDP on each of its addresses.
func serve(t *testing.T, ns *namespace, port int) {
	t.Helper()
	ns.in(func() {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		must.Do(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("x"))
				_ = c.Close()
			}
		}()
		addrs, err := net.InterfaceAddrs()
		must.Do(t, err)
		for _, a := range addrs {
			ip := a.(*net.IPNet).IP
			if ip.To4() == nil {
				continue
			}
			p, err := net.ListenUDP("udp4", &net.UDPAddr{IP: ip, Port: port})
			must.Do(t, err)
			t.Cleanup(func() { _ = p.Close() })
			go func() {
				b := make([]byte, 8)
				for {
					_, from, err := p.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = p.WriteTo([]byte("x"), from)
				}
			}()
		}
	})
}

// reach reports whether one gets an answer in time.
func reach(ns *namespace, network, to string, patience time.Duration) (answered bool, err error) {
	ns.in(func() {
		d := net.Dialer{Timeout: patience}
		var c net.Conn
		if c, err = d.Dial(network, to); err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		if network == "udp" {
			if _, err = c.Write([]byte("x")); err != nil {
				return
			}
		}
		n, e := c.Read(make([]byte, 1))
		answered, err = n == 1, e
	})
	return answered, err
}

// TestTraffic sends packets through the kernel's own rules.
func TestTraffic(t *testing.T) {
	t.Parallel()
	for _, nf := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables "+nf, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node.sh(t, "echo "+nf+" >/proc/sys/net/bridge/bridge-nf-call-iptables || [ "+nf+" = 0 ]")
			traffic(t, r)
		})
	}
}

const yes, no, refusedAtOnce = true, false, true

// way is a destination and which of its ports answer.
type way struct {
	what          string
	from          *namespace
	to            string
	ports         map[int]bool
	refusedAtOnce bool // a refusal comes at once
}

const long = 10 * time.Second

func traffic(t *testing.T, r rig) {
	rows := []way{
		{"a job to the outside", r.job, "192.0.2.2", map[int]bool{80: yes, 53: yes}, false},
		{"a job to the metadata", r.job, "169.254.169.254", map[int]bool{80: no, 53: yes}, refusedAtOnce},
		{"a job to its bridge", r.job, "198.18.0.1", map[int]bool{80: no, 53: yes}, refusedAtOnce},
		{"a job to the node's other bridge", r.job, "198.18.1.1", map[int]bool{80: no}, refusedAtOnce},
		{"a job to the node's address outside", r.job, "192.0.2.1", map[int]bool{80: no, 53: yes}, refusedAtOnce},
		{"a job to what the node publishes", r.job, "192.0.2.1", map[int]bool{8080: no}, false},
		{"a job to its slot's other container", r.job, "198.18.0.3", map[int]bool{80: yes, 53: yes}, false},
		{"a job to its neighbour", r.job, "198.18.1.2", map[int]bool{80: no, 53: no}, refusedAtOnce},
		{"a neighbour back", r.neighbour, "198.18.0.2", map[int]bool{80: no, 53: no}, false},
		{"another container to a job", r.other, "198.18.0.2", map[int]bool{80: no, 53: no}, false},
		{"the outside to a job", r.external, "198.18.0.2", map[int]bool{80: no, 53: no}, false},
		{"the outside to what the node publishes", r.external, "192.0.2.1", map[int]bool{8080: yes}, false},
		{"another container to the node", r.other, "172.30.0.1", map[int]bool{80: yes}, false},
		{"the node to a job", r.node, "198.18.0.2", map[int]bool{80: no, 53: no}, false},
		{"the node to the metadata", r.node, "169.254.169.254", map[int]bool{80: yes}, false},
	}
	// Without rules everything can be reached: nothing else separates them here.
	for _, row := range rows {
		for port := range row.ports {
			if ok, err := reach(row.from, "tcp", fmt.Sprintf("%s:%d", row.to, port), long); !ok {
				t.Errorf("without rules: %s, port %d: %v", row.what, port, err)
			}
		}
	}
	r.node.in(func() {
		must.Do(t, (Node{Slots: twoSlots}).Ensure())
	})
	try(t, rows)
	t.Run("link-local IPv6", func(t *testing.T) {
		var hw net.HardwareAddr
		r.node.in(func() {
			i, err := net.InterfaceByName("kbnode-gpu0")
			must.Do(t, err)
			hw = i.HardwareAddr
		})
		ll := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: hw[0] ^ 2, 9: hw[1], 10: hw[2], 11: 0xff, 12: 0xfe, 13: hw[3], 14: hw[4], 15: hw[5]})
		for _, port := range []int{53, 80} {
			if ok, _ := reach(r.job, "tcp", fmt.Sprintf("[%s%%eth0]:%d", ll, port), 300*time.Millisecond); ok {
				t.Errorf("a job reaches %s port %d", ll, port)
			}
		}
	})
}

// try tries each way by TCP and UDP.
func try(t *testing.T, rows []way) {
	t.Helper()
	for _, row := range rows {
		for port, want := range row.ports {
			for _, network := range []string{"tcp", "udp"} {
				if port == 8080 && network == "udp" {
					continue
				}
				patience := map[bool]time.Duration{yes: long, no: 300 * time.Millisecond}[want]
				got, err := reach(row.from, network, net.JoinHostPort(row.to, fmt.Sprint(port)), patience)
				if got != want {
					t.Errorf("%s, %s port %d: answered %t, %v", row.what, network, port, got, err)
				}
				if row.refusedAtOnce && !want && network == "tcp" && !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s, port %d: %v; a program would wait", row.what, port, err)
				}
			}
		}
	}
}

// TestRepair changes the rules as an operator might, and checks the state.
func TestRepair(t *testing.T) {
	t.Parallel()
	node := newNamespace(t)
	node.in(func() {
		wantState := func(want State, slots []Slot) {
			t.Helper()
			if got, err := (Node{Slots: slots}).State(); err != nil || got != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		}
		wantState(Absent, twoSlots)
		must.Err(t, Remove(), "")
		must.Do(t, (Node{Slots: twoSlots}).Ensure())
		wantState(Intact, twoSlots)
		wantState(Altered, twoSlots[:1])
		for what, other := range map[string]Node{
			"the Internet":  {Slots: []Slot{twoSlots[0], {Bridge: "kbnode-gpu1", Internet: true}}},
			"a destination": {Slots: twoSlots, Allowed: example.Allowed[:1]},
			"a name server": {Slots: twoSlots, Resolvers: example.Resolvers[1:]},
		} {
			if got, err := other.State(); err != nil || got != Altered {
				t.Errorf("with %s: %s, %v", what, got, err)
			}
		}
		must.Do(t, example.Ensure())
		if got, err := example.State(); err != nil || got != Intact {
			t.Errorf("%s, %v", got, err)
		}

		conn := &nftables.Conn{}
		conn.FlushRuleset()
		must.Do(t, conn.Flush())
		wantState(Absent, twoSlots)
		// What root changed in place is restored.
		must.Do(t, example.Ensure())
		c := &nftables.Chain{Table: &table, Name: "from_job"}
		conn.InsertRule(&nftables.Rule{Table: &table, Chain: c, Exprs: accept().exprs})
		conn.FlushSet(&nftables.Set{Table: &table, Name: sameSlot})
		must.Do(t, errors.Join(conn.Flush(), example.Ensure()))
		rules, err := conn.GetRules(&table, c)
		if has, err2 := conn.GetSetElements(&nftables.Set{Table: &table, Name: sameSlot}); err != nil || err2 != nil || len(has) != 2 || reflect.DeepEqual(rules[0].Exprs, accept().exprs) {
			t.Errorf("%d elements, first rule %v, %v, %v", len(has), rules[0], err, err2)
		}
		many := make([]Slot, 256)
		for k := range many {
			many[k] = Slot{fmt.Sprintf("kbnode-gpu%d", k), k%2 == 0}
		}
		if err := (Node{Slots: many}).Ensure(); err != nil {
			t.Errorf("256 slots: %v", err)
		}
		if state, err := (Node{Slots: many}).State(); err != nil || state != Intact {
			t.Errorf("256 slots: %s, %v", state, err)
		}
		// Slots whose policies are of different configurations, each with as many destinations as it may have.
		large := Node{Slots: many}
		for i := range 512 {
			large.Allowed = append(large.Allowed, destination(fmt.Sprintf("10.%d.%d.0/24:443", i/256, i%256)))
		}
		for i := range maxResolvers {
			large.Resolvers = append(large.Resolvers, netip.AddrFrom4([4]byte{10, 9, 9, byte(i)}))
		}
		must.Do(t, large.Ensure())
		if state, err := large.State(); err != nil || state != Intact {
			t.Errorf("many rules: %s, %v", state, err)
		}
		must.Err(t, (Node{}).Ensure(), "")
		wantState(Intact, nil)
		must.Err(t, Remove(), "")
		wantState(Absent, nil)
	})
}
