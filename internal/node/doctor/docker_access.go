package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/firewall"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// apiOpen matches the address in the engine's warning about its open API.
var apiOpen = lazy.Regexp(`API is accessible on (\S+) without (encryption|TLS client verification)`)

func dockerApi(_ context.Context, m *Machine) Answer {
	for _, w := range m.Docker.Warnings {
		at := apiOpen().FindStringSubmatch(w)
		if at == nil {
			continue
		}
		return found(fail("the engine is open on %s: anyone who can reach it is root here", at[1]).
			Advise("remove the tcp:// address from hosts in %s, or from dockerd's command line (systemctl cat docker), then run sudo systemctl restart docker", host.DaemonJSON))
	}
	return found(ok("only its socket, or with certificates"))
}

func dockerSocket(_ context.Context, m *Machine) Answer {
	name := m.Config.Docker.Socket
	info, err := os.Stat(m.Path(name))
	switch {
	case err != nil:
		return found(warn("%s", err).Advise("check why %s cannot be read", name))
	case info.Mode().Perm()&0o007 != 0:
		return found(fail("%s has mode %04o, so any user of this machine can become root", name, info.Mode().Perm()).Safely("chmod 0660 %s", name))
	}
	return found(ok("%s, mode %04o", name, info.Mode().Perm()))
}

func dockerUserns(ctx context.Context, m *Machine) Answer {
	if !slices.Contains(m.Docker.Security, "name=userns") {
		return found(ok("not remapped"))
	}
	return found(usernsRemap.change(ctx, m, fail("userns-remap is on, so jobs cannot write to their checkouts")))
}

func dockerSeccomp(_ context.Context, m *Machine) Answer {
	profile, seccomp, armor := "", false, false
	for _, s := range m.Docker.Security {
		if rest, is := strings.CutPrefix(s, "name=seccomp"); is {
			seccomp, profile = true, strings.TrimPrefix(rest, ",profile=")
		}
		armor = armor || strings.HasPrefix(s, "name=apparmor")
	}
	switch {
	case !seccomp:
		return found(fail("the kernel or the engine has no seccomp, so a job can make any system call").Advise("install the distribution's own kernel and Docker; both have it"))
	case profile == "unconfined":
		return found(fail("the seccomp profile is unconfined, so a job can make any system call").Advise("remove seccomp-profile from %s, or from dockerd's command line, then run sudo systemctl restart docker", host.DaemonJSON))
	case m.Value("/sys/module/apparmor/parameters/enabled") == "Y" && !armor:
		return found(warn("the kernel has AppArmor, but Docker does not use it").By("%s && systemctl restart docker", "apt-get update && apt-get install -y apparmor"))
	}
	return found(ok("profile %s", cmp.Or(profile, "default")))
}

func dockerNetwork(ctx context.Context, m *Machine) Answer {
	if m.Config.Job.Network == config.NetworkNone {
		return none("jobs have no network (job.network: none)")
	}
	c := readDaemon(ctx, m)
	for _, key := range []string{"iptables", "ip-masq"} {
		if c.Off(key) {
			return found(fail("%s is off in Docker, so jobs get no replies from the network", key).
				Advise("remove it from %s, or from dockerd's command line, and run sudo systemctl restart docker; or set job.network: none", host.DaemonJSON))
		}
	}
	if m.Value("/proc/sys/net/ipv4/ip_forward") == "0" {
		return found(fail("net.ipv4.ip_forward is 0, so jobs reach nothing").Safely("sysctl -w net.ipv4.ip_forward=1").
			Advise("if it comes back, see grep -r ip_forward /etc/sysctl.conf /etc/sysctl.d"))
	}
	const fix = "give the node an IPv4 route, as with a CLAT (464XLAT); or set job.network: none in " + plan.ConfigPath + " and run sudo kbnode reconcile"
	switch out, near, known := m.ipv4(); {
	case !known || out || !m.defaultIPv6():
	case near:
		return found(warn("the node has a default route for IPv6 only, and slots' networks have only IPv4, so jobs do not reach the Internet").Advise("%s", fix))
	default:
		return found(fail("the node has only IPv6, and slots' networks have only IPv4, so jobs reach nothing").Advise("%s", fix))
	}
	return found(ok("forwarded and masqueraded"))
}

// ipv4 reports whether the node has a default route for IPv4, and one to other machines. known is false if its
// routes cannot be read.
func (m *Machine) ipv4() (out, near, known bool) {
	table, err := m.Read("/proc/net/route")
	for _, r := range firewall.Routes(strings.NewReader(table)) {
		other := !m.ofContainers(r.Device) && r.Device != "lo" && !r.To.Addr().IsLinkLocalUnicast() && !r.To.Addr().IsMulticast()
		out, near = out || other && r.To.Bits() <= 1, near || other // VPNs have two halves in place of a default route
	}
	return out, near, err == nil || errors.Is(err, fs.ErrNotExist) // of a kernel without IPv4
}

// defaultIPv6 reports whether the node has a default route for IPv6. Destination and prefix length are the first
// two fields, in hexadecimal, and the device is the last.
func (m *Machine) defaultIPv6() (has bool) {
	m.Lines("/proc/net/ipv6_route", func(line string) {
		f := strings.Fields(line)
		has = has || len(f) > 2 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[len(f)-1] != "lo"
	})
	return has
}

// ofContainers reports whether a network device is for containers on the node itself.
func (m *Machine) ofContainers(device string) bool {
	bridge, card := m.IsBridge(device)
	return bridge && !card || strings.HasPrefix(device, strings.TrimSuffix(plan.NetworkName(0), "0"))
}

// neighborhood returns the private networks that a routing table leads to, without those of
// containers on the node itself.
func (m *Machine) neighborhood(table string) (list []string) {
	var nets []netip.Prefix
	for _, r := range firewall.Routes(strings.NewReader(table)) {
		to := r.To
		if to.Bits() == 0 {
			to = netip.PrefixFrom(r.Via, r.Via.BitLen())
		}
		if a := to.Addr(); firewall.Private(a) && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !m.ofContainers(r.Device) {
			nets = append(nets, to)
		}
	}
	slices.SortFunc(nets, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	for i, p := range nets {
		if !slices.ContainsFunc(nets[:i], p.Overlaps) {
			list = append(list, p.String())
		}
	}
	return list
}

func dockerLAN(_ context.Context, m *Machine) Answer {
	switch m.Config.Job.Network {
	case config.NetworkNone:
		return none("jobs have no network (job.network: none)")
	case config.NetworkInternet:
		return found(ok("the rules let jobs reach %s; as-planned checks whether they are in place",
			strings.Join(append([]string{"public addresses"}, m.Config.Job.AllowedNetworks...), ", ")))
	}
	table, err := m.Read("/proc/net/route")
	if err != nil {
		return found(skip("the node's routes cannot be read: %s", err))
	}
	if list := m.neighborhood(table); len(list) > 0 {
		return found(warn("jobs can reach private networks of the node: %s", strings.Join(list, ", ")).
			Advise("set job.network: internet in %s, list what jobs need there in job.allowed_networks, such as [10.1.2.3:3128], then run sudo kbnode reconcile", plan.ConfigPath))
	}
	return found(ok("the node is not in a private network"))
}

// runcRaces are vulnerabilities by which a container becomes root of the node; fixed in 1.2.8 and 1.3.3.
const runcRaces = "CVE-2025-31133"

func dockerRunc(_ context.Context, m *Machine) Answer {
	version := m.Docker.Runc
	switch {
	case len(numbers(version)) < 3:
		return none("the engine does not report the version of runc")
	case !older(version, "1.3.3"), !older(version, "1.2.8") && older(version, "1.3"):
		return found(ok("%s", version))
	}
	f := warn("%s: judging by its version, a job can become root on the node (%s)", version, runcRaces)
	list, _ := m.Packages("containerd.io", "runc", "runc-stable")
	if len(list) == 0 {
		return found(f.Advise("update runc to 1.2.8, 1.3.3 or newer, unless the distribution has fixed it without changing the version"))
	}
	return found(f.By("apt-get update && apt-get install -y --only-upgrade %s", list[0].Name).
		Advise("a distribution may have fixed it without changing the version: apt-get changelog %s | grep %s", list[0].Name, runcRaces))
}
