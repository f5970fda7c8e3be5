package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/firewall"
	"github.com/gpu-mode/kbnode/internal/plan"
)

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
		return found(warn("jobs can reach %s, which %s", strings.Join(list, ", "), map[bool]string{true: "is a private network of the node", false: "are private networks of the node"}[len(list) == 1]).
			Advise("set job.network: internet in %s, list what jobs need there in job.allowed_networks, such as [10.1.2.3:3128], then run sudo kbnode reconcile", plan.ConfigPath))
	}
	return found(ok("the node is not in a private network"))
}
