package plan

import "net/netip"

// NetworkName returns the name of the Docker network of slot k's containers,
// and of its bridge.
func NetworkName(k int) string { return "kbnode-" + SlotName(k) }

// Subnets returns the subnets for slot k's network, which gets the first that
// is free; nil if k is above 255. They are in 198.18.0.0/15, which belongs to
// no one (RFC 2544), so they hide nothing that the node or its jobs reach. Of
// the private addresses, the engine would take a /16 for each slot.
func Subnets(k int) []netip.Prefix {
	if k > 255 {
		return nil
	}
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(k), 0}), 24),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(k), 0}), 24),
	}
}
