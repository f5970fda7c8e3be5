package cli

import (
	"cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// openNetwork is the network of this machine. The configuration says where the
// engine is; without one, or with one that cannot be read, it is at the usual place.
func openNetwork() reconcile.Network {
	m := &machine{root: "/"}
	_ = m.loadConfig(&wishes{}, func(string) string { return "" }) // whoever needs it whole says what is wrong with it
	return reconcile.SystemNetwork{Socket: cmp.Or(m.cfg.Docker.Socket, config.DefaultDockerSocket)}
}
