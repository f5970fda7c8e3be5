package cli

import (
	"cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// openNetwork returns this machine's network. The configuration names the Docker socket. Without
// a readable configuration it is the default one.
func openNetwork() reconcile.Network {
	m := &machine{root: "/"}
	_ = m.loadConfig(&wishes{}, func(string) string { return "" }) // commands that need all of it report what is wrong
	return reconcile.SystemNetwork{Socket: cmp.Or(m.cfg.Docker.Socket, config.DefaultDockerSocket)}
}
