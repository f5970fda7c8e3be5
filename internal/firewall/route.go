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

// Route is a way that the node has to addresses of IPv4.
type Route struct {
	Device string
	To     netip.Prefix
	Via    netip.Addr // 0.0.0.0 for what is on the link
}

// maxRoutes bounds a table of routes, in bytes; a server has a few lines.
const maxRoutes = 1 << 20

// Routes reads a table in the form of /proc/net/route.
func Routes(table io.Reader) (list []Route) {
	// An address is in the order of the network's bytes, printed as a number.
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

// Private says whether a slot that has the Internet only is kept from an address
// unless the operator lists it.
func Private(a netip.Addr) bool {
	return slices.ContainsFunc(slices.Concat(private, metadata), func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// Passes says whether a slot that has the Internet only reaches a TCP port, other
// than those of name servers.
func (n Node) Passes(to netip.AddrPort) bool {
	a := to.Addr().Unmap()
	if slices.ContainsFunc(metadata, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return false
	}
	for _, d := range n.Allowed {
		if d.Prefix.Contains(a) && (d.Port == 0 || d.Port == to.Port()) {
			return true
		}
	}
	return !Private(a)
}
