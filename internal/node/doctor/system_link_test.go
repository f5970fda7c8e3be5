package doctor

import (
	"maps"
	"strings"
	"testing"
)

// TestLink tests the speeds of links, as the kernel has them in its files.
func TestLink(t *testing.T) {
	t.Parallel()
	const net = "/sys/class/net/"
	route := func(device, metric string) string {
		return device + "\t00000000\t0100000A\t0003\t0\t0\t" + metric + "\t00000000\t0\t0\t0\n"
	}
	v6 := func(device, metric string) string {
		zeros := strings.Repeat("0", 32)
		return zeros + " 00 " + zeros + " 00 fe80" + strings.Repeat("0", 28) + " " + metric + " 00000001 00000000 00000003 " + device + "\n"
	}
	card := func(name, speed string) map[string]string {
		files := map[string]string{net + name + "/device/vendor": "0x8086\n"}
		if speed != "" {
			files[net+name+"/speed"] = speed + "\n"
		}
		return files
	}
	files := func(routes string, more ...map[string]string) map[string]string {
		all := map[string]string{"/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" + routes}
		for _, m := range more {
			maps.Copy(all, m)
		}
		return all
	}
	const slow = "warn: eno1, over which the node reaches the Internet, runs at 10 Mbit/s; a node needs 100"
	f := &fake{}
	play(t, []scene{
		{"fast", "system-link", f, files(route("eno1", "0"), card("eno1", "25000")), "ok: eno1: 25000 Mbit/s", ""},
		{"as slow as may be", "system-link", f, files(route("eno1", "0"), card("eno1", "100")), "ok: eno1: 100 Mbit/s", ""},
		{"slow", "system-link", f, files(route("eno1", "0"), card("eno1", "10")), slow, ""},
		{"slow, but not used", "system-link", f, files(route("eno1", "100")+route("eno2", "50"), card("eno1", "10"), card("eno2", "1000")), "ok: eno2: 1000 Mbit/s", ""},
		{"a management card", "system-link", f, files(route("eno2", "0"), card("usb0", "10"), card("eno2", "1000")), "ok: eno2: 1000 Mbit/s", ""},
		{"one of two", "system-link", f, files(route("eno1", "0")+route("eno2", "0"), card("eno1", "10"), card("eno2", "1000")), slow, ""},
		{"virtio", "system-link", f, files(route("eth0", "0"), card("eth0", "-1")), "skip: eth0 does not report its speed, as in a virtual machine", ""},
		{"no file", "system-link", f, files(route("eth0", "0"), card("eth0", "")), "skip: eth0 does not report its speed, as in a virtual machine", ""},
		{"a VPN, whose 10 mean nothing", "system-link", f, files(route("tun0", "0"), map[string]string{net + "tun0/speed": "10\n"}), "skip: tun0 does not report its speed, as in a virtual machine", ""},
		{"a bond", "system-link", f, files(route("bond0", "0"), map[string]string{net + "bond0/bonding/mode": "802.3ad 4\n", net + "bond0/speed": "200\n"}), "ok: bond0: 200 Mbit/s", ""},
		{"a bridge on a VLAN", "system-link", f, files(route("br0", "0"), card("eno1", "10"), map[string]string{
			net + "br0/speed": "10000\n", net + "br0/lower_vnet0/x": "", net + "br0/lower_eno1.7/x": "", net + "eno1.7/lower_eno1/x": "", net + "vnet0/speed": "10000\n",
		}), slow, ""},
		{"devices below each other", "system-link", f, files(route("a", "0"), map[string]string{net + "a/lower_b/x": "", net + "b/lower_a/x": ""}), "skip: a does not report its speed, as in a virtual machine", ""},
		{"IPv6 only", "system-link", f, files("", card("eno1", "10"), map[string]string{"/proc/net/ipv6_route": v6("lo", "ffffffff") + v6("eno1", "00000400")}), slow, ""},
		{"no default route", "system-link", f, files("eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"), "skip: no default route is known", ""},
		{"no table", "system-link", f, map[string]string{net + "eno1/speed": "10\n"}, "skip: no default route is known", ""},
	})
}
