package node

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Host is this machine, connected to systemd, ready to be observed and changed.
type Host struct {
	*reconcile.Host
	Bus   *systemd.Bus
	Close func()
}

// Open connects to this machine, to look at it or to change it. From then on the process has the umask 022:
// slots' users must reach what a node has, and a hardened machine gives root another.
func (n *Node) Open(ctx context.Context) (Host, error) {
	_ = syscall.Umask(0o022)
	bus, err := systemd.Connect(ctx)
	if err != nil {
		return Host{}, fmt.Errorf("systemd does not run or does not answer; run kbnode on the host, not in a container: %w", err)
	}
	return Host{
		Host: &reconcile.Host{Root: "/", Systemd: bus, Users: reconcile.SystemUsers{}, Network: Network(), Log: n.Log},
		Bus:  bus, Close: bus.Close,
	}, nil
}

// Network returns this machine's network. The configuration names the Docker socket. Without a
// readable configuration it is the one that the slots use, or the default one.
func Network() reconcile.Network {
	n := &Node{Root: "/"}
	if n.LoadStored() != nil { // commands that need all of it report what is wrong
		_ = n.recall()
	}
	return reconcile.SystemNetwork{Socket: n.Config.Docker.Socket}
}

// lockTime is how long a command waits for another one. A pass of the daemon takes seconds, or a
// minute if a slow driver is asked to change all GPUs. An uninstall that waits for jobs may take
// an hour.
const lockTime = 2 * time.Minute

// Lock excludes every other kbnode that changes the machine, until release.
func (n *Node) Lock(ctx context.Context, host *reconcile.Host) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	return n.WaitLock(ctx, host.Lock, "")
}

// WaitLock waits for another kbnode to release a lock. why is what the other one does, for
// people.
func (n *Node) WaitLock(ctx context.Context, take func() (func(), error), why string) (release func(), err error) {
	for reported := false; ; reported = true {
		release, err := take()
		locked, ok := errors.AsType[*reconcile.LockedError](err)
		if !ok {
			return release, err
		}
		if !reported {
			n.say("waiting for another kbnode (pid %s)%s", locked.PID, why)
		}
		if limit.Sleep(ctx, 200*time.Millisecond) != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, err
			}
			return nil, ctx.Err()
		}
	}
}

// Preview returns what a machine, or a tree, differs in from its plan, as far as the user may read
// it.
func (n *Node) Preview(ctx context.Context) ([]reconcile.Change, error) {
	host := &reconcile.Host{Root: n.Root}
	if n.Live() {
		if bus, err := systemd.Connect(ctx); err == nil {
			defer bus.Close()
			host.Systemd, host.Network = bus, Network()
		}
	}
	_, changes, err := n.Compare(ctx, host)
	return changes, err
}

// Compare observes the machine as it was read, and returns what differs from its plan.
func (n *Node) Compare(ctx context.Context, host *reconcile.Host) (*reconcile.State, []reconcile.Change, error) {
	host.GPUs = n.Inventory.GPUs
	state, err := host.Observe(ctx, n.Plan)
	if err != nil {
		return nil, nil, err
	}
	return state, reconcile.Diff(n.Plan, state), nil
}

// LookLocked looks at the machine and observes it while no other kbnode changes it.
func (n *Node) LookLocked(ctx context.Context, host *reconcile.Host) (*reconcile.State, error) {
	release, err := n.Lock(ctx, host)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := n.Inspect(ctx); err != nil {
		return nil, err
	}
	return host.Observe(ctx, n.Plan)
}

// Converge changes a machine to match a plan.
func Converge(ctx context.Context, host *reconcile.Host, p *plan.Plan) (reconcile.Result, error) {
	state, err := host.Observe(ctx, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	return host.Apply(ctx, p, state, reconcile.Diff(p, state))
}
