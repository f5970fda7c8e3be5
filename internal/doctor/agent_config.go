package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// cfgPath returns the path of the configuration of slot k's agent.
func cfgPath(k int) string { return plan.AgentDir(k) + "/buildkite-agent.cfg" }

// agentKeys checks the agents' configuration. An agent silently ignores a key that it does
// not know, and the slot is open.
func agentKeys(_ context.Context, m *Machine) Answer {
	known := map[string][]string{"": m.Inventory.Software.Agent.Keys}
	if text, err := m.Read(plan.AgentsPath); err == nil {
		kept, err := plan.ParseAgents([]byte(text))
		if err != nil {
			return found(fail("%s", lines(err)).Advise("delete the file, or run sudo kbnode upgrade again"))
		}
		for _, r := range kept.Releases {
			known[r.Version] = r.Keys
		}
	}
	return found(m.eachSlot(func(s plan.Slot) Finding {
		text, err := m.Read(cfgPath(s.Index))
		if err != nil {
			return Finding{} // as-planned reports it
		}
		keys, unknown, n := known[s.AgentVersion], []string{}, 0
		for line := range strings.Lines(text) {
			key, _, is := strings.Cut(line, "=")
			if key = strings.TrimSpace(key); !is || strings.HasPrefix(key, "#") {
				continue
			}
			if n++; !slices.Contains(keys, key) {
				unknown = append(unknown, key)
			}
		}
		switch {
		case len(keys) == 0:
			return warn("the agent does not list its configuration keys").By("kbnode upgrade --agent-version %s", plan.PinnedAgentVersion)
		case len(unknown) > 0:
			return fail("the agent does not know %.200s and silently ignores it", strings.Join(unknown, ", ")).Safely("kbnode reconcile")
		}
		return ok("%d keys", n)
	})...)
}
