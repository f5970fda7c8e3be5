package node

import (
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// Network returns this machine's network. The configuration names the Docker socket. Without a
// readable configuration it is the default one.
func Network() reconcile.Network {
	n := &Node{Root: "/"}
	_ = n.LoadStored() // commands that need all of it report what is wrong
	return reconcile.SystemNetwork{Socket: n.Config.Docker.Socket}
}
