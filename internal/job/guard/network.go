package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/firewall"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// chooseNetwork puts the container on the slot's own network, unless it has none.
func (b *builder) chooseNetwork() {
	if b.policy.Network == config.NetworkNone {
		b.host.NetworkMode = job.NetworkNone
	}
	if b.host.NetworkMode != job.NetworkNone {
		b.host.NetworkMode = container.NetworkMode(plan.NetworkName(b.policy.Slot))
	}
}

// slotNetwork is the network of the slot's containers and the rules that keep it apart. Either
// may disappear at any time, by a prune or a restart of a firewall, so both are checked before
// each container.
type slotNetwork struct {
	slot    int
	ensure  func(context.Context, docker.Network) error
	protect func() error // makes sure of the rules of all slots
	routes  func() (io.ReadCloser, error)
	// forget ends the connections of earlier containers, which would lead the outside to the next one. nil ends none.
	forget func([]netip.Prefix) error

	mu sync.Mutex // older engines would make the same network twice
}

func newNetwork(p plan.JobPolicy, engine *docker.Engine) *slotNetwork {
	return &slotNetwork{
		slot:   p.Slot,
		ensure: engine.EnsureNetwork,
		protect: func() error {
			node, err := firewall.Read("/")
			if err != nil {
				return err
			}
			return node.Ensure()
		},
		routes: func() (io.ReadCloser, error) { return os.Open("/proc/net/route") },
		forget: firewall.Forget,
	}
}

// readyFor makes sure of the rules and the network for a container that is about to be made, and that it gets no
// connections of those before. None of them runs any more.
func (n *slotNetwork) readyFor(ctx context.Context) error {
	if err := n.ready(ctx); err != nil || n.forget == nil {
		return err
	}
	networks := plan.Subnets(n.slot)
	if bridge, err := net.InterfaceByName(plan.NetworkName(n.slot)); err == nil { // the engine may have chosen another
		addrs, err := bridge.Addrs()
		if err != nil {
			return fmt.Errorf("list the addresses of network %s: %w", bridge.Name, err)
		}
		networks = nil // the node may route those elsewhere
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				networks = append(networks, p.Masked())
			}
		}
	}
	if err := n.forget(networks); err != nil {
		return err
	}
	return nil
}

// ready makes sure of the rules, without which no container may start, and of the network.
func (n *slotNetwork) ready(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.protect(); err != nil {
		return fmt.Errorf("cannot isolate the network of slot %s, so containers start only with job.network: none: %w", plan.SlotName(n.slot), err)
	}
	name := plan.NetworkName(n.slot)
	routes, err := n.routes()
	if err != nil {
		return fmt.Errorf("read the node's routes: %w", err)
	}
	defer hangUp(routes)
	err = n.ensure(ctx, docker.Network{
		Name:    name,
		Labels:  map[string]string{slot.Label: strconv.Itoa(n.slot)},
		Subnets: unrouted(plan.Subnets(n.slot), routes, name),
	})
	if err != nil {
		return err
	}
	return nil
}

// unrouted leaves out the subnets to which the node already has a route, by a table in the form
// of /proc/net/route. The default route and that of the network itself do not count.
func unrouted(subnets []netip.Prefix, table io.Reader, own string) []netip.Prefix {
	taken := slices.DeleteFunc(firewall.Routes(table), func(r firewall.Route) bool { return r.Device == own || r.To.Bits() == 0 })
	return slices.DeleteFunc(subnets, func(p netip.Prefix) bool {
		return slices.ContainsFunc(taken, func(r firewall.Route) bool { return r.To.Overlaps(p) })
	})
}

// resolveTime bounds the lookup of a registry's addresses. The engine waits as long for a name server that answers for
// some kinds of address only.
const resolveTime = 30 * time.Second

// public6 is what IANA has allocated of the public IPv6 Internet, and special6 what of it is not: it carries an IPv4
// address, or has another purpose. nat64 carries one, too, which decides.
var (
	public6  = netip.MustParsePrefix("2000::/3")
	special6 = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	}
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

// registries decides from where jobs may pull. The engine, which is root in the node's network,
// sends their requests.
type registries struct {
	listed []string // by the operator: host or host:port
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	own    func() ([]net.Addr, error) // the node's addresses
	// proxied reports whether the engine leaves a registry's name to a proxy. nil is never.
	proxied func(ctx context.Context, registry string) bool
}

func newRegistries(listed []string, proxied func(context.Context, string) bool) registries {
	return registries{
		listed: listed, own: net.InterfaceAddrs, proxied: proxied,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
	}
}

// unresolvedError means that it is not known where a registry is. What DNS says to the engine, a moment later, may
// be anything.
type unresolvedError struct {
	registry string
	absent   bool // DNS says that there is no such name
	why      string
}

func (e *unresolvedError) Error() string {
	if e.absent {
		return fmt.Sprintf("DNS knows no address of the registry %.255q; check the image's name. On a node without DNS for the outside, its operator gives Docker both HTTP_PROXY and HTTPS_PROXY, or lists the registry in job.private_registries", e.registry)
	}
	return fmt.Sprintf("DNS does not say where the registry %.255q is (%s), and it may be no public one; try again, or ask the node's operator to list it in job.private_registries", e.registry, e.why)
}

// errOwnAddresses is the node's fault, not the job's.
var errOwnAddresses = errors.New("list the node's addresses")

// mayPull refuses an image whose registry is not public, or perhaps not, unless the operator lists it. It allows
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
	host := strings.Trim(registry, "[]")
	if h, _, err := net.SplitHostPort(registry); err == nil {
		host = h
	}
	addrs, err := r.addresses(ctx, host)
	dns, unknown := errors.AsType[*net.DNSError](err)
	switch {
	case unknown && r.proxied != nil && r.proxied(ctx, registry):
		return nil
	case unknown:
		return &unresolvedError{registry, dns.IsNotFound, dns.Err}
	case err == nil && len(addrs) == 0:
		return &unresolvedError{registry: registry, absent: true}
	case err != nil:
		return fmt.Errorf("the registry %.255q: %w", registry, err)
	}
	own, err := r.own()
	if err != nil {
		return errors.Join(errOwnAddresses, err)
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
	if a.Is6() {
		return public6.Contains(a) && !slices.ContainsFunc(special6, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return a.IsGlobalUnicast() && !a.IsPrivate() && !firewall.Private(a)
}

func isAddr(o net.Addr, a netip.Addr) bool {
	ip, ok := o.(*net.IPNet)
	if !ok {
		return false
	}
	b, ok := netip.AddrFromSlice(ip.IP)
	return ok && b.Unmap() == a.WithZone("").Unmap()
}
