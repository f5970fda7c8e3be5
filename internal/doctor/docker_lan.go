package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/firewall"
	"github.com/gpu-mode/kbnode/internal/plan"
)

var lanCheck = Check{
	ID: "docker-lan", Group: "docker", Bare: true, Worst: Fail, Needs: []string{"config"},
	Doc:   "With `job.network: bridge`, the default, jobs reach them. [`internet`](security.md#the-internet-only) limits jobs and agents to public addresses and `job.allowed_networks`, such as `['10.1.9.7:3128']`. List a private proxy or `agent.endpoint` there.",
	About: "jobs cannot reach the node's private networks, and agents can reach Buildkite",
	Run: func(ctx context.Context, m *Machine) Answer {
		switch m.Config.Job.Network {
		case config.NetworkNone:
			return none("jobs have no network (job.network: none)")
		case config.NetworkInternet:
			return found(m.internetOnly(ctx))
		}
		table, err := m.Read("/proc/net/route")
		if err != nil {
			return found(skip("the node's routes cannot be read: %s", err))
		}
		if list := m.neighborhood(table); len(list) > 0 {
			return found(warn("jobs can reach %s, which %s", strings.Join(list, ", "), map[bool]string{true: "is a private network of the node", false: "are private networks of the node"}[len(list) == 1]).
				Advise("set job.network: internet in %s, list what jobs and agents need there in job.allowed_networks, such as [10.1.2.3:3128], then run sudo kbnode reconcile", plan.ConfigPath))
		}
		return found(ok("the node is not in a private network"))
	},
}

// shownNetworks is how many networks a finding names.
const shownNetworks = 4

// neighborhood returns the private networks that a routing table leads to, without those of
// containers on the node itself.
func (m *Machine) neighborhood(table string) (list []string) {
	var nets []netip.Prefix
	for _, r := range firewall.Routes(strings.NewReader(table)) {
		to := r.To
		if to.Bits() == 0 {
			to = netip.PrefixFrom(r.Via, r.Via.BitLen())
		}
		a := to.Addr()
		if firewall.Private(a) && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !m.inside(r.Device) {
			nets = append(nets, to)
		}
	}
	slices.SortFunc(nets, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	var shown []netip.Prefix
	for _, p := range nets {
		if !slices.ContainsFunc(shown, func(s netip.Prefix) bool { return s.Overlaps(p) }) {
			shown = append(shown, p)
		}
	}
	for i, p := range shown {
		if i == shownNetworks {
			return append(list, fmt.Sprintf("and %d more", len(shown)-i))
		}
		list = append(list, p.String())
	}
	return list
}

// inside reports whether a device is a bridge without a network card.
func (m *Machine) inside(device string) bool {
	if is, connected := m.IsBridge(device); is {
		return !connected
	}
	return strings.HasPrefix(device, strings.TrimSuffix(plan.NetworkName(0), "0"))
}

// lookupTime limits the lookup of a name.
const lookupTime = 3 * time.Second

// internetOnly checks whether the planned rules let agents out. The check as-planned
// reports whether the rules are in place.
func (m *Machine) internetOnly(ctx context.Context) Finding {
	var n firewall.Node
	for _, s := range m.Config.Job.AllowedNetworks {
		if d, err := config.ParseDestination(s); err == nil {
			n.Allowed = append(n.Allowed, d)
		}
	}
	at, err := url.Parse(m.Config.Agent.Endpoint)
	if err != nil {
		return skip("agent.endpoint is not a URL; see agent-endpoint")
	}
	_, proxies := m.agentNetwork(ctx)
	if proxy, err := proxies.ProxyFunc()(at); err == nil && proxy != nil {
		at = proxy
	}
	port, _ := strconv.ParseUint(cmp.Or(at.Port(), map[string]string{"http": "80"}[at.Scheme], "443"), 10, 16)
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", at.Hostname())
	if err != nil || loopback(at.Hostname()) {
		addresses = nil // agent-endpoint reports it, or it is this machine
	}
	closed := ""
	for _, a := range addresses {
		to := netip.AddrPortFrom(a.Unmap(), uint16(port))
		if n.Passes(to) {
			closed = ""
			break
		}
		closed = to.String()
	}
	if closed != "" {
		return fail("agents reach Buildkite through %s (%s), which is private and not allowed", at.Host, closed).
			Advise("add '%s' to job.allowed_networks in %s, then run sudo kbnode reconcile", closed, plan.ConfigPath)
	}
	allowed := "public addresses only"
	if len(n.Allowed) > 0 {
		allowed = "public addresses, and " + strings.Join(m.Config.Job.AllowedNetworks, ", ")
	}
	return ok("the rules let jobs reach %s; as-planned checks whether they are in place", allowed)
}
