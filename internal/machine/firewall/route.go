package firewall

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Route is an IPv4 route of the node.
type Route struct {
	Device string
	To     netip.Prefix
	Via    netip.Addr // 0.0.0.0 for addresses on the link
}

// maxRoutes bounds a routing table, in bytes; a server has a few lines.
const maxRoutes = 1 << 20

// Routes reads a routing table in the form of /proc/net/route.
func Routes(table io.Reader) (list []Route) {
	// An address is printed as a number whose bytes are in network order.
	number := func(s string) ([4]byte, bool) {
		n, err := strconv.ParseUint(s, 16, 32)
		return [4]byte(binary.NativeEndian.AppendUint32(nil, uint32(n))), err == nil
	}
	lines := bufio.NewScanner(io.LimitReader(table, maxRoutes))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 8 {
			continue
		}
		to, ok := number(f[1])
		via, okVia := number(f[2])
		mask, okMask := number(f[7])
		if !ok || !okVia || !okMask {
			continue
		}
		ones := bits.OnesCount32(binary.NativeEndian.Uint32(mask[:]))
		list = append(list, Route{f[0], netip.PrefixFrom(netip.AddrFrom4(to), ones), netip.AddrFrom4(via)})
	}
	return list
}

// Private reports whether a slot with only the Internet cannot reach an address unless
// the operator lists it.
func Private(a netip.Addr) bool {
	return slices.ContainsFunc(slices.Concat(private, metadata), func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}
