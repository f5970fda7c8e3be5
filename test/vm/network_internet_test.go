//go:build vm

package vm_test

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
)

// lan is a private network beyond the one of externalNet: the node's name server, a
// mirror, a private server, and one of the Internet.
const lan = `
docker rm -f kbnode-gpu0-server kbnode-gpu1-server
for a in 10.77.0.53 10.77.0.80 10.77.0.81 100.64.1.1 8.8.4.4; do ip netns exec outside ip addr add $a/32 dev lo; done
systemd-run -q --unit=lan ip netns exec outside python3 /root/net.py serve lan dns 10.77.0.53 10.77.0.80 10.77.0.81 100.64.1.1 8.8.4.4
ip route add 10.0.0.0/8 via 192.0.2.2
cp /etc/resolv.conf /root/resolv.conf; echo nameserver 10.77.0.53 >/etc/resolv.conf
`

// internetOnly closes the private network to jobs, but for the mirror, and opens it again.
func internetOnly(t *testing.T, n network, theirs string) {
	n.t = t
	m := n.m
	m.Sh(lan)
	m.Wait("the LAN", "python3 /root/net.py ask tcp,10.77.0.81,80 name,outside.test,0 | grep -c ' ok ' | grep -q 2")
	if c := asked(t, m, "--only docker-lan")["docker-lan"]; c.Status != doctor.Warn || !strings.Contains(c.Summary(), "10.0.0.0/8") {
		t.Errorf("%s: %s", c.Status, c.Summary())
	}
	closed := map[string]string{
		"tcp,8.8.4.4,80": "ok lan", "udp,8.8.4.4,80": "ok lan", "tcp,192.0.2.2,80": "ok outside", "name,outside.test,0": "ok 192.0.2.2",
		"tcp,10.77.0.80,80": "ok lan", "tcp,10.77.0.53,53": "ok lan",
		"tcp,10.77.0.80,53": "no [Errno 111]", "tcp,10.77.0.53,80": "no [Errno 111]",
		"tcp,10.77.0.81,80": "no [Errno 111]", "udp,10.77.0.81,80": "no", "udp,10.77.0.81,53": "no", "tcp,100.64.1.1,80": "no [Errno 111]",
		"tcp,169.254.169.254,80": "no [Errno 111]", "tcp," + theirs + ",80": "no",
	}
	m.Sh(`printf 'job:\n  network: internet\n  allowed_networks: ["10.77.0.80:80"]\n' >>/etc/kbnode/config.yaml; kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m`)
	n.want(n.run(1, "", append([]string{"ask"}, keys(closed)...)...), closed)
	if c := asked(t, m, "--only docker-lan")["docker-lan"]; c.Status != doctor.OK {
		t.Errorf("%s: %s", c.Status, c.Summary())
	}
	root := map[string]string{"tcp,10.77.0.81,80": "ok lan", "tcp,10.77.0.53,80": "ok lan"}
	n.want(m.Sh("python3 /root/net.py ask "+strings.Join(keys(root), " ")), root)
	if r := runStep(m, 2, step(2, "busybox:test", "wget -q -O- -T 20 http://10.77.0.81/ 2>&1 || true; wget -q -O- -T 20 http://10.77.0.80/", "")); r.Code != 0 || !strings.Contains(r.Stdout, "refused") || !strings.Contains(r.Stdout, "lan sees 192.0.2.1") {
		t.Errorf("a pipeline: exit %d\n%s", r.Code, r.Stdout)
	}
	m.Sh("nft flush ruleset")
	n.want(n.run(1, "", append([]string{"ask"}, keys(closed)...)...), closed)

	m.Sh(`sed -i '/^job:/,$d' /etc/kbnode/config.yaml; kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m`)
	open := map[string]string{"tcp,10.77.0.81,80": "ok lan", "tcp,100.64.1.1,80": "ok lan"}
	n.want(n.run(1, "", append([]string{"ask"}, keys(open)...)...), open)
	m.Sh("cp /root/resolv.conf /etc/resolv.conf; ip route del 10.0.0.0/8")
}
