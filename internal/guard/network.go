package guard

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/firewall"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// The networks that a job can name. networkBridge is the slot's own.
const (
	networkBridge = "bridge"
	networkNone   = "none"
)

// chooseNetwork puts the container on the slot's own network, unless it has none.
func (b *builder) chooseNetwork() {
	if b.policy.Network == config.NetworkNone {
		b.host.NetworkMode = networkNone
	}
	if b.host.NetworkMode != networkNone {
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
	}
}

// ready makes sure of the rules, without which no container may start, and of the network.
func (n *slotNetwork) ready(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.protect(); err != nil {
		return unavailable(fmt.Errorf("cannot isolate the network of slot %s, so containers start only with job.network: none: %w", plan.SlotName(n.slot), err))
	}
	name := plan.NetworkName(n.slot)
	routes, err := n.routes()
	if err != nil {
		return fmt.Errorf("read the node's routes: %w", err)
	}
	defer hangUp(routes)
	err = n.ensure(ctx, docker.Network{
		Name:    name,
		Labels:  map[string]string{slotLabel: strconv.Itoa(n.slot)},
		Subnets: unrouted(plan.Subnets(n.slot), routes, name),
	})
	if err != nil {
		return unavailable(err)
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
