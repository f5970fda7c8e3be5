package node

import "github.com/gpu-mode/kbnode/internal/machine/hook"

// HookWarnings says why hooks of the configuration would not run. Of a recorded machine's programs nothing is known.
func (n *Node) HookWarnings() (all []string) {
	if n.Recorded {
		return nil
	}
	for _, p := range hook.Problems(n.Root, n.Config.Job) {
		all = append(all, p.String())
	}
	return all
}
