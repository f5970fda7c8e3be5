package node

import (
	"cmp"
	"os"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// WithSettings returns a pass of the daemon with who learns of the node below root, and the node's name. Before the first plan,
// the configuration alone says so, even if it is wrong elsewhere: that there is none, as after a boot without what the node needs,
// is what people must hear. known is false if that cannot be read; then no one must be forgotten.
func WithSettings(root string, s daemon.Snapshot) (_ daemon.Snapshot, name string, known bool) {
	if s.Plan != nil {
		return s, s.Plan.Node, true
	}
	n := &Node{Root: root}
	err := n.LoadStored()
	c, known := n.Config, err == nil && !n.absent
	if err != nil {
		text, _ := n.ReadFile(plan.ConfigPath) // of nothing, nothing is known
		c, known = config.Contacts(plan.ConfigPath, text)
	}
	if !known {
		return s, "", false
	}
	host, _ := os.Hostname() // without a name, they are told all the same
	s.Metrics, s.Notify = c.Metrics, c.Notify
	return s, cmp.Or(c.Node, host), true
}
