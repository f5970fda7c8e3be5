package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/firewall"
)

// resolveTime bounds the lookup of a registry's addresses.
const resolveTime = 5 * time.Second

// reserved lists IPv6 addresses that look public but lead to the node's own network, or that carry an
// IPv4 address.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("fec0::/10"),
	netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16"),
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// registries decides from where jobs may pull. The engine, which is root in the node's network,
// sends their requests.
type registries struct {
	listed []string // by the operator: host or host:port
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	own    func() ([]net.Addr, error) // the node's addresses
}

func newRegistries(listed []string) registries {
	return registries{
		listed: listed, own: net.InterfaceAddrs,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
	}
}

// mayPull refuses an image whose registry is not public, unless the operator lists it. It allows
// Docker Hub, which is where the engine's configuration says.
func (r registries) mayPull(ctx context.Context, image string) error {
	full, err := docker.ParseRef(image)
	if err != nil {
		return err
	}
	registry, _, _ := strings.Cut(full, "/")
	if registry == "docker.io" || slices.ContainsFunc(r.listed, func(l string) bool { return strings.EqualFold(l, registry) }) {
		return nil
	}
	host := registry
	if h, _, err := net.SplitHostPort(registry); err == nil {
		host = h
	}
	addrs, err := r.addresses(ctx, host)
	if _, unknown := errors.AsType[*net.DNSError](err); unknown {
		return nil // the engine reports this too, or has a proxy that knows it
	}
	if err != nil {
		return fmt.Errorf("the registry %.255q: %w", registry, err)
	}
	own, err := r.own()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, a := range addrs {
		if !public(a) || slices.ContainsFunc(own, func(o net.Addr) bool { return isAddr(o, a) }) {
			return fmt.Errorf("the registry %.255q is at %s, which is not a public address; ask the node's operator to list it in job.private_registries, or use an image of a public registry", registry, a)
		}
	}
	return nil
}

// addresses returns a host's addresses. It refuses a number that is not the usual form of an
// address: resolvers read 127.1, 0x7f000001 and 017700000001 as one.
func (r registries) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if hex, ok := strings.CutPrefix(last, "0x"); ok && strings.Trim(hex, "0123456789abcdef") == "" || strings.Trim(last, "0123456789") == "" {
		return nil, fmt.Errorf("%.255q is a number, not an address; write its name", host)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	return r.lookup(ctx, host)
}

// public reports whether an address is on the public Internet.
func public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a.IsGlobalUnicast() && !a.IsPrivate() && !firewall.Private(a) && !slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) })
}

func isAddr(o net.Addr, a netip.Addr) bool {
	ip, ok := o.(*net.IPNet)
	if !ok {
		return false
	}
	b, ok := netip.AddrFromSlice(ip.IP)
	return ok && b.Unmap() == a.WithZone("").Unmap()
}
