package doctor

import (
	"context"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// cfgPath returns the path of the configuration of slot k's agent.
func cfgPath(k int) string { return plan.AgentDir(k) + "/buildkite-agent.cfg" }

// settings parses an agent's configuration. The keys are in file order.
func settings(text string) (keys []string, values map[string]string) {
	values = map[string]string{}
	for line := range strings.Lines(text) {
		key, v, is := strings.Cut(line, "=")
		if key = strings.TrimSpace(key); !is || strings.HasPrefix(key, "#") {
			continue
		}
		keys = append(keys, key)
		values[key] = strings.Trim(strings.TrimSpace(v), `"'`)
	}
	return keys, values
}

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
		name, keys := cfgPath(s.Index), known[s.AgentVersion]
		text, err := m.Read(name)
		have, _ := settings(text)
		wanted, _ := settings(m.planned(name))
		unknown, missing := without(have, keys), without(wanted, have)
		switch {
		case err != nil:
			return fail("the agent's configuration cannot be read: %s", because(err)).Safely("kbnode reconcile")
		case len(keys) == 0:
			return warn("the agent does not list its configuration keys").By("kbnode upgrade --agent-version %s", plan.PinnedAgentVersion)
		case len(unknown) > 0:
			return fail("the agent does not know %.200s and silently ignores it", strings.Join(unknown, ", ")).Safely("kbnode reconcile")
		case len(missing) > 0:
			return fail("%s is not set", strings.Join(missing, ", ")).Safely("kbnode reconcile")
		}
		return ok("%d keys", len(have))
	})...)
}

func agentQueue(_ context.Context, m *Machine) Answer {
	return found(m.eachSlot(func(s plan.Slot) Finding {
		text, err := m.Read(cfgPath(s.Index))
		if err != nil {
			return Finding{} // agent-keys reports it
		}
		_, values := settings(text)
		var queues []string
		for tag := range strings.SplitSeq(values["tags"], ",") {
			if q, is := strings.CutPrefix(strings.TrimSpace(tag), "queue="); is {
				queues = append(queues, q)
			}
		}
		switch {
		case len(queues) == 0:
			return fail("the agent has no queue, so it uses the default queue instead of %s", s.Queue).Safely("kbnode reconcile")
		case len(queues) > 1 || queues[0] != s.Queue:
			return fail("the agent uses queue %.80s, but the slot's queue is %s", strings.Join(queues, " and "), s.Queue).Safely("kbnode reconcile")
		}
		return ok("%s", s.Queue)
	})...)
}
