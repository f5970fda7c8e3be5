package plan

import "net/netip"

// NetworkName is the Docker network of slot k's containers, and its bridge.
func NetworkName(k int) string { return "kbnode-" + SlotName(k) }

// Subnets are the addresses that slot k's network may have, the first that is
// free. They lie in 198.18.0.0/15, which belongs to nobody (RFC 2544), so that
// they hide nothing that the node or its jobs reach. Of the private addresses
// the engine would take a /16 for each slot.
func Subnets(k int) []netip.Prefix {
	if k > 255 {
		return nil
	}
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(k), 0}), 24),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(k), 0}), 24),
	}
}
