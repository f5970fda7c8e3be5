//go:build vm

package vm_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// externalNet is a network beyond the guest, which has none: a machine with a name,
// at 192.0.2.2, that has the address of a cloud's metadata too. It answers by
// whom it sees, and is the guest's name server.
const externalNet = `
ip netns add outside
ip link add out0 type veth peer name eth0 netns outside
ip addr add 192.0.2.1/24 dev out0; ip link set out0 up
ip netns exec outside sh -c 'ip link set lo up; ip addr add 192.0.2.2/24 dev eth0; ip addr add 169.254.169.254/32 dev lo; ip link set eth0 up'
ip route add default via 192.0.2.2
echo nameserver 192.0.2.2 >/etc/resolv.conf
systemd-run -q --unit=outside ip netns exec outside python3 /root/net.py serve outside dns 192.0.2.2 169.254.169.254
systemd-run -q --unit=inside python3 /root/net.py serve host 0.0.0.0 ::
`

// netScript serves, and asks: one line says what came of each question.
const netScript = `
import errno, os, select, socket, struct, sys

def serve(name, dns, addresses):
    waiting = {}
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for port in (80, 53):
            for address in addresses:
                if port == 53 and not dns:
                    continue
                s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, kind)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if ':' in address:
                    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                s.bind((address, port))
                if kind == socket.SOCK_STREAM:
                    s.listen()
                waiting[s] = port
    print('serving', flush=True)
    while True:
        for s in select.select(waiting, [], [])[0]:
            if s.type == socket.SOCK_STREAM:
                c, peer = s.accept()
                c.sendall(('HTTP/1.0 200 OK\r\n\r\n%s sees %s\n' % (name, peer[0])).encode())
                c.shutdown(socket.SHUT_WR)
                c.settimeout(2)
                try:
                    while c.recv(2000):  # a connection that is closed with an unread request is reset
                        pass
                except OSError:
                    pass
                c.close()
                continue
            data, peer = s.recvfrom(2000)
            if waiting[s] == 80:
                s.sendto(('%s sees %s\n' % (name, peer[0])).encode(), peer)
            elif len(data) > 12:
                end = data.index(b'\0', 12) + 5
                known = data[12:end].lower().startswith(b'\7outside\4test\0')
                a = known and data[end - 3] == 1
                head = data[:2] + struct.pack('>HHHHH', 0x8180 if known else 0x8183, 1, a, 0, 0)
                s.sendto(head + data[12:end] + (b'\xc0\x0c\0\1\0\1\0\0\0\1\0\4\xc0\0\2\2' if a else b''), peer)

def ask(what):
    try:
        kind, address, port = what.split(',')
        if kind == 'name':
            return 'ok ' + socket.gethostbyname(address)
        s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
        s.settimeout(float(os.environ.get('PATIENCE', '5')))
        s.connect((address, int(port), 0, socket.if_nametoindex('eth0')) if ':' in address else (address, int(port)))
        if kind == 'udp':
            s.send(b'hello')
        return 'ok ' + s.recv(100).decode(errors='replace').strip().split('\n')[-1]
    except (OSError, UnicodeError) as e:
        return 'no %s' % e

def tricks():
    def attempt(what, f):
        try:
            f()
            print('trick %s worked' % what)
        except (OSError, PermissionError) as e:
            print('trick %s: %s' % (what, errno.errorcode.get(e.errno, e)))
    attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
    attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255))
    attempt('transparent', lambda: socket.socket().setsockopt(socket.SOL_IP, 19, 1))
    attempt('netlink', lambda: route_delete())
    attempt('sysctl', lambda: open('/proc/sys/net/ipv6/conf/eth0/disable_ipv6', 'w'))
    attempt('unshare', lambda: os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET))

def route_delete():
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = struct.pack('BBBBBBBBI', socket.AF_INET, 0, 0, 0, 254, 0, 0, 0, 0)
    s.send(struct.pack('IHHII', 16 + len(body), 25, 5, 1, 0) + body)
    code = -struct.unpack_from('i', s.recv(1000), 16)[0]
    if code:
        raise OSError(code, 'netlink')

if sys.argv[1] == 'serve':
    serve(sys.argv[2], 'dns' in sys.argv, [a for a in sys.argv[3:] if a != 'dns'])
if sys.argv[1] == 'tricks':
    tricks()
for what in sys.argv[2:]:
    print(what, ask(what), flush=True)
`

// network is a node with something beyond it, and a listening container in slot
// 0 and in slot 1.
type network struct {
	t *testing.T
	m *vm.Machine
}

// run runs net.py in a job of a slot.
func (n network) run(slot int, options string, args ...string) string {
	n.t.Helper()
	script := base64.StdEncoding.EncodeToString([]byte(netScript))
	r := runStep(n.m, slot, step(slot, "kernelbot-test:latest", "echo "+script+" | base64 -d >net.py; python3 net.py "+strings.Join(args, " "), options))
	if r.Code != 0 {
		n.t.Errorf("slot %d: exit %d: %s", slot, r.Code, r.Stdout)
	}
	return strings.ReplaceAll(r.Stdout, "\r", "")
}

// serve starts a listening container on a slot's network, outside of the slot, and returns its address.
// That of slot 0 takes a name away: the engine answers for hostnames before it asks the resolver.
func (n network) serve(slot int) string {
	n.t.Helper()
	runStep(n.m, slot, step(slot, "busybox:test", "true", "")) // makes the network
	n.m.Sh(fmt.Sprintf("docker run -d --name kbnode-gpu%[1]d-server --network kbnode-gpu%[1]d %[2]s -v /root/net.py:/net.py kernelbot-test:latest python3 /net.py serve job 0.0.0.0",
		slot, map[bool]string{true: "--hostname outside.test"}[slot == 0]))
	n.m.Wait("the container to serve", fmt.Sprintf("docker logs kbnode-gpu%d-server | grep -q serving", slot))
	address := n.m.Sh(fmt.Sprintf("docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' kbnode-gpu%d-server", slot))
	if !strings.HasPrefix(address, fmt.Sprintf("198.18.%d.", slot)) {
		n.t.Errorf("the container of slot %d has the address %q", slot, address)
	}
	return address
}

// want compares what net.py said with what each question should come to: the
// start of the answer.
func (n network) want(out string, answers map[string]string) {
	n.t.Helper()
	bad := false
	for what, answer := range answers {
		if !strings.Contains(out, what+" "+answer) {
			n.t.Errorf("%s: want %q", what, answer)
			bad = true
		}
	}
	if bad {
		n.t.Log(out)
	}
}

func keys(answers map[string]string) (list []string) {
	for what := range answers {
		list = append(list, what)
	}
	return list
}

// TestNetwork looks at what jobs of two slots reach that run at the same time.
func TestNetwork(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Put("/root/net.py", 0o644, netScript)
	m.Sh(externalNet)
	n := network{t, m}
	m.Wait("the outside", "python3 /root/net.py ask tcp,192.0.2.2,80 name,outside.test,0 | grep -c ' ok ' | grep -q 2")
	m.Sh("docker run -d --name theirs -p 8080:80 -v /root/net.py:/net.py kernelbot-test:latest python3 /net.py serve theirs 0.0.0.0")
	theirs := m.Sh("docker inspect -f '{{.NetworkSettings.IPAddress}}' theirs")
	address := [2]string{n.serve(0), n.serve(1)}

	// jobs is what a job of a slot reaches and does not reach.
	jobs := func(slot int) map[string]string {
		named := [2]string{address[0], "192.0.2.2"}
		return map[string]string{
			"tcp,192.0.2.2,80":             "ok outside sees 192.0.2.1",
			"udp,192.0.2.2,80":             "ok outside sees 192.0.2.1",
			"name,outside.test,0":          "ok " + named[slot],
			"name,nowhere.test,0":          "no",
			"tcp," + address[slot] + ",80": "ok job sees",

			"tcp," + address[1-slot] + ",80": "no", "udp," + address[1-slot] + ",80": "no",
			fmt.Sprintf("name,kbnode-gpu%d-server,0", 1-slot): "no",
			"tcp,198.18.0.1,80":           "no [Errno 111]",
			"udp,198.18.0.1,80":           "no",
			"tcp,198.18.1.1,80":           "no [Errno 111]",
			"tcp,192.0.2.1,80":            "no [Errno 111]",
			"tcp,172.17.0.1,80":           "no [Errno 111]",
			"tcp,192.0.2.1,8080":          "no",
			"tcp,172.17.0.1,8080":         "no",
			"tcp," + theirs + ",80":       "no",
			"tcp,169.254.169.254,80":      "no [Errno 111]",
			"udp,169.254.169.254,80":      "no",
			"tcp,198.18.0.255,80":         "no",
			"tcp,fe80::1,80":              "no",
			"tcp,fd00:ec2::254,80":        "no",
			"tcp,100.100.100.200,80":      "no [Errno 111]",
			"tcp,168.63.129.16,80":        "no [Errno 111]",
			"tcp,127.0.0.1,8899":          "no [Errno 111]",
			"udp,224.0.0.251,80":          "no",
			"udp,255.255.255.255,80":      "no",
			"tcp,198.18.255.1,80":         "no",
			"tcp,host.docker.internal,80": "no",
		}
	}
	check := func(t *testing.T, slot int) {
		t.Helper()
		w := network{t, m}
		want := jobs(slot)
		w.want(w.run(slot, "", append([]string{"ask"}, keys(want)...)...), want)
	}

	t.Run("jobs", func(t *testing.T) {
		check(t, 0)
		check(t, 1)
	})
	t.Run("tricks", func(t *testing.T) {
		out := network{t, m}.run(1, `, user: "0"`, "tricks")
		if strings.Contains(out, "worked") || strings.Count(out, "trick ") != 6 {
			t.Error(out)
		}
	})
	t.Run("IPv6 of the link", func(t *testing.T) {
		link := m.Sh(`ip -6 -o addr show dev kbnode-gpu1 scope link | sed 's/.*inet6 \([^/]*\).*/\1/'`)
		if link == "" {
			return
		}
		want := map[string]string{"tcp," + link + ",80": "no", "udp," + link + ",80": "no"}
		w := network{t, m}
		w.want(w.run(1, "", append([]string{"ask"}, keys(want)...)...), want)
	})
	t.Run("the host", func(t *testing.T) {
		w := network{t, m}
		want := map[string]string{"tcp,169.254.169.254,80": "ok outside", "tcp,192.0.2.2,80": "ok outside", "tcp," + address[0] + ",80": "no", "tcp," + theirs + ",80": "ok theirs"}
		w.want(m.Sh("python3 /root/net.py ask "+strings.Join(keys(want), " ")), want)
	})
	t.Run("others", func(t *testing.T) {
		w := network{t, m}
		want := map[string]string{"tcp,192.0.2.2,80": "ok outside sees 192.0.2.1", "tcp,172.17.0.1,80": "ok host", "tcp,169.254.169.254,80": "ok outside", "tcp," + address[0] + ",80": "no"}
		w.want(m.Sh("docker exec theirs python3 /net.py ask "+strings.Join(keys(want), " ")), want)
		want = map[string]string{"tcp,192.0.2.1,8080": "ok theirs", "tcp," + address[0] + ",80": "no"}
		w.want(m.Sh("ip netns exec outside ip route replace 198.18.0.0/15 via 192.0.2.1; ip netns exec outside python3 /root/net.py ask "+strings.Join(keys(want), " ")), want)
	})
	blocked := func(t *testing.T) {
		t.Helper()
		w := network{t, m}
		want := map[string]string{"tcp," + address[0] + ",80": "no", "tcp,198.18.1.1,80": "no [Errno 111]", "tcp,169.254.169.254,80": "no [Errno 111]"}
		w.want(w.run(1, "", append([]string{"ask"}, keys(want)...)...), want)
	}
	t.Run("a firewall that starts anew", func(t *testing.T) {
		m.Sh("nft flush ruleset")
		blocked(t)
		m.Sh("nft flush ruleset; kbnode reconcile")
		must.Equal(t, 0, m.Try("nft list table inet kbnode").Code)
		m.Sh("nft flush chain inet kbnode to_host; nft insert rule inet kbnode forward accept")
		blocked(t)
		m.Sh("nft add table inet kbnode '{ flags dormant; }'")
		blocked(t)
	})
	t.Run("Docker starts anew", func(t *testing.T) {
		m.Sh("systemctl restart docker")
		m.Wait("their container", "docker start theirs") // the one before may still be ending
		m.Try("docker rm -f kbnode-gpu0-server kbnode-gpu1-server")
		address[0], address[1] = n.serve(0), n.serve(1)
		theirs = m.Sh("docker inspect -f '{{.NetworkSettings.IPAddress}}' theirs")
		check(t, 0)
		check(t, 1)
	})
	t.Run("networks that are pruned", func(t *testing.T) {
		m.Sh("docker rm -f kbnode-gpu0-server kbnode-gpu1-server; docker network prune -f")
		if got := m.Sh("docker network ls -q --filter label=kbnode.slot"); got != "" {
			t.Fatalf("%s is left", got)
		}
		address[0], address[1] = n.serve(0), n.serve(1)
		check(t, 1)
	})
	t.Run("the Internet only", func(t *testing.T) { internetOnly(t, n, theirs) })
	t.Run("reboot", func(t *testing.T) {
		m.Reboot()
		m.Sh("bkstub wait-agents --count 8 --timeout 5m; nft list table inet kbnode")
	})
	t.Run("uninstall", func(t *testing.T) {
		m.Sh("docker rm -f theirs; kbnode uninstall")
		if got := m.Sh("docker network ls --format '{{.Name}}' | sort | tr '\n' ' '; nft list tables | grep kbnode || true; ip -br link | grep kbnode || true"); got != "bridge host none" && got != "bridge host none " {
			t.Errorf("it left %s", got)
		}
	})
}
