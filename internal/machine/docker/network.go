package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// networkDeadline bounds the requests about one network.
	networkDeadline = 2 * time.Minute
	// createPoll is the time between two tries to create a network whose name is taken.
	createPoll = 200 * time.Millisecond
)

// Options of the engine's bridge driver, as its documentation names them.
const (
	bridgeName = "com.docker.network.bridge.name"
	bridgeMTU  = "com.docker.network.driver.mtu"
)

// Network is a network of containers on a bridge of the same name.
type Network struct {
	Name    string // of the network and its interface: 15 bytes at most
	Labels  map[string]string
	Subnets []netip.Prefix // the first free one is used; without one the engine chooses
}

// EnsureNetwork makes a network unless it is as it should be. A new one has IPv4 and the MTU of
// the engine's default network. A wrong one that is in use is an error.
func (e *Engine) EnsureNetwork(ctx context.Context, n Network) error {
	ctx, cancel := context.WithTimeout(ctx, networkDeadline)
	defer cancel()
	for {
		res, err := e.api.NetworkInspect(ctx, n.Name, client.NetworkInspectOptions{})
		switch {
		case err == nil && matches(res.Network.Network, n.Name):
			return nil
		case err == nil:
			if err := e.RemoveNetwork(ctx, res.Network.ID); err != nil {
				return fmt.Errorf("replace network %s, which someone else created: %w", n.Name, err)
			}
		case !errdefs.IsNotFound(err):
			return e.wrap("look up network "+n.Name, err)
		}
		// The engine finishes a network even if its maker has gone, and does not show it before
		// it is complete.
		if err = e.createNetwork(ctx, n); !errdefs.IsConflict(err) || limit.Sleep(ctx, createPoll) != nil {
			return err
		}
	}
}

// matches reports whether a network is what EnsureNetwork makes. Its addresses may be any.
func matches(has network.Network, name string) bool {
	return has.Name == name && has.Driver == "bridge" && has.Options[bridgeName] == name && !has.EnableIPv6 && !has.Internal
}

func (e *Engine) createNetwork(ctx context.Context, n Network) error {
	no := false
	opts := client.NetworkCreateOptions{
		Driver: "bridge", EnableIPv6: &no, Labels: n.Labels,
		Options: map[string]string{bridgeName: n.Name},
	}
	usual, err := e.api.NetworkInspect(ctx, "bridge", client.NetworkInspectOptions{})
	switch mtu := usual.Network.Options[bridgeMTU]; {
	case err != nil && !errdefs.IsNotFound(err): // there may be none
		return e.wrap("look up Docker's default network", err)
	case mtu != "":
		opts.Options[bridgeMTU] = mtu
	}
	var errs []error
	for _, subnet := range append(slices.Clip(n.Subnets), netip.Prefix{}) {
		opts.IPAM = &network.IPAM{Driver: "default"}
		if subnet.IsValid() {
			opts.IPAM.Config = []network.IPAMConfig{{Subnet: subnet}}
		}
		_, err := e.api.NetworkCreate(ctx, n.Name, opts)
		if err == nil {
			return nil
		}
		errs = append(errs, e.wrap("create network "+n.Name, err))
		if ctx.Err() != nil || errdefs.IsConflict(err) { // another subnet would not help
			break
		}
	}
	return errors.Join(errs...)
}

// Networks returns the names of the engine's networks with this label.
func (e *Engine) Networks(ctx context.Context, label string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, networkDeadline)
	defer cancel()
	res, err := e.api.NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return nil, e.wrap("list networks", err)
	}
	var names []string
	for _, n := range res.Items {
		names = append(names, n.Name)
	}
	return names, nil
}

// RemoveNetwork removes a network that no container uses, if there is one. The error says what uses it, and
// what to type.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, networkDeadline)
	defer cancel()
	used, detachErr := e.detach(ctx, name)
	_, err := e.api.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	err = e.wrap("remove network "+name, err)
	if len(used) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(used, "; "))
	}
	return errors.Join(err, detachErr)
}

// DetachGone disconnects from a network what the engine keeps there of containers that are gone: an engine
// that was killed keeps the endpoint of a container that ends while it restores it. Such an endpoint keeps its
// name and address from others, and the network from being removed.
func (e *Engine) DetachGone(ctx context.Context, name string) error {
	_, err := e.detach(ctx, name)
	return err
}

// detach disconnects what is gone. used says what else the network has, and what to type.
func (e *Engine) detach(ctx context.Context, name string) (used []string, err error) {
	res, err := e.api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, e.wrap("look up network "+name, err)
	}
	name = res.Network.Name
	for _, id := range slices.Sorted(maps.Keys(res.Network.Containers)) {
		endpoint := res.Network.Containers[id].Name
		has, inspectErr := e.Inspect(ctx, id)
		known := inspectErr == nil
		if errors.Is(inspectErr, ErrNotFound) {
			// Without an ID, one that starts may have the name. One whose ID begins with it would be disconnected, too.
			has, inspectErr = e.Inspect(ctx, endpoint)
		}
		container := strings.TrimPrefix(has.Name, "/")
		switch {
		case errors.Is(inspectErr, ErrNotFound):
			// The engine finds it only by its name. A container of that name would lose its network instead.
			opts := client.NetworkDisconnectOptions{Container: endpoint, Force: true}
			if _, cutErr := e.api.NetworkDisconnect(ctx, res.Network.ID, opts); !errdefs.IsNotFound(cutErr) {
				err = errors.Join(err, e.wrap("disconnect "+endpoint+" from network "+name, cutErr))
			}
		case inspectErr != nil:
			err = errors.Join(err, inspectErr)
		case !known && !strings.HasPrefix(id, unknownPrefix):
			used = append(used, fmt.Sprintf("the engine keeps a container %s there that is gone, and another has its name; type sudo docker rename %[1]s %[1]s-2", container))
		case has.State != nil && has.State.Running:
			used = append(used, fmt.Sprintf("container %s uses it; type sudo docker network disconnect -f %s %[1]s", container, name))
		default: // disconnecting it would change only what it gets when it starts
			used = append(used, fmt.Sprintf("container %s, which has ended, keeps it; type sudo docker rm %[1]s", container))
		}
	}
	return used, err
}

// unknownPrefix begins the key of an endpoint whose container the engine does not know.
const unknownPrefix = "ep-"
