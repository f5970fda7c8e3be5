package firewall

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Node is what the rules of a machine depend on.
type Node struct {
	Slots []Slot
	// Allowed is what slots with only the Internet may reach in addition. Resolvers are
	// the node's name servers, of which these slots reach port 53.
	Allowed   []config.Destination
	Resolvers []netip.Addr
}

// Slot is what the rules need to know of one slot.
type Slot struct {
	Bridge   string // the interface of its containers' network
	Internet bool   // it reaches only public addresses
}

// maxFile bounds what is read of a file, in bytes.
const maxFile = 1 << 20

// maxResolvers bounds the number of name servers, each of which takes two rules. The C
// library asks three.
const maxResolvers = 16

// Read reads a tree: the slots that it has users for, and their policies. Everything that
// writes the rules reads them here, so that they agree.
func Read(root string) (Node, error) {
	var n Node
	users, err := host.Tree{Root: root}.Users()
	if err != nil {
		return n, err
	}
	for name := range users {
		k, err := strconv.Atoi(strings.TrimPrefix(name, bridges))
		if err == nil && k >= 0 && name == plan.UserName(k) {
			n.readSlot(root, k)
		}
	}
	slices.SortFunc(n.Slots, func(a, b Slot) int { return cmp.Compare(a.Bridge, b.Bridge) })
	if slices.ContainsFunc(n.Slots, func(s Slot) bool { return s.Internet }) {
		n.Resolvers = resolvers(root)
	}
	slices.SortFunc(n.Allowed, func(a, b config.Destination) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.Port, b.Port))
	})
	n.Allowed = slices.Compact(n.Allowed)
	return n, nil
}

// readSlot adds a slot and what its policy allows. A policy that cannot be read allows
// nothing.
func (n *Node) readSlot(root string, k int) {
	policy, err := slot.ReadPolicy(root, k)
	n.Slots = append(n.Slots, Slot{Bridge: plan.NetworkName(k), Internet: err != nil || policy.Network == config.NetworkInternet})
	if err != nil {
		return
	}
	for _, text := range policy.Networks {
		if d, err := config.ParseDestination(text); err == nil && d.Prefix.Addr().Is4() { // containers have no IPv6
			n.Allowed = append(n.Allowed, d)
		}
	}
}

// resolvers returns the name servers of the node, of systemd-resolved if it is in
// between, and of Docker, in IPv4. Those on loopback are the node itself and are left out.
func resolvers(root string) []netip.Addr {
	var names []string
	for _, name := range []string{"etc/resolv.conf", "run/systemd/resolve/resolv.conf"} {
		data, _ := limit.ReadFile(filepath.Join(root, name), maxFile)
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				names = append(names, f[1])
			}
		}
	}
	var daemon struct {
		DNS []string `json:"dns"`
	}
	if data, err := limit.ReadFile(filepath.Join(root, "etc/docker/daemon.json"), maxFile); err == nil && json.Unmarshal(data, &daemon) == nil {
		names = append(names, daemon.DNS...)
	}
	var list []netip.Addr
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil && a.Unmap().Is4() && !a.IsLoopback() && !a.IsUnspecified() {
			list = append(list, a.Unmap())
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	return list[:min(len(list), maxResolvers)]
}
