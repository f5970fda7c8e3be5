package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// waits reports whether a slot's agent should be connected now.
func (m *Machine) waits(s plan.Slot) bool {
	ss := m.State.Slot(s.Index)
	return s.Serves() && len(ss.Parked) == 0 && ss.Registered
}

// queues uses the agents' own token, which sees the queues of its cluster.
func queues(_ context.Context, m *Machine) Answer {
	if m.Account == nil || len(m.Account.Agents.Queues) == 0 {
		return none("Buildkite shows this token no queues")
	}
	slots := map[string][]int{}
	for _, s := range m.Plan.Slots {
		if m.waits(s) {
			slots[s.Queue] = append(slots[s.Queue], s.Index)
		}
	}
	var all []Finding
	for _, q := range slices.Sorted(maps.Keys(slots)) {
		ours := slots[q]
		at, there := m.Account.Agents.Queues[q]
		switch {
		case !there:
			all = append(all, fail("the token's cluster has no queue %s, or no agent in it", q).Of(ours...).
				Advise("create it in Buildkite (Agents, the cluster, Queues, New Queue, self-hosted), or choose another with sudo kbnode install --queue NAME"))
		case at.Total < len(ours):
			all = append(all, warn("queue %s has %d agents, but %d slots use it", q, at.Total, len(ours)).Of(ours...).
				Advise("see Agents in Buildkite for the missing ones, and try again in a minute"))
		default:
			all = append(all, ok("%s: %d agents", q, at.Total).Of(ours...))
		}
	}
	if len(all) == 0 {
		return none("no slot waits for jobs")
	}
	return found(all...)
}

// connected uses the REST API, which needs a user's token.
func connected(ctx context.Context, m *Machine) Answer {
	if m.API.Token == "" {
		return none("no API token; set BUILDKITE_API_TOKEN to ask")
	}
	if m.Account == nil || m.Account.Organization.Slug == "" {
		return none("Buildkite does not report the organization")
	}
	client, err := buildkite.New(buildkite.Options{URL: m.API.URL, Token: m.API.Token})
	if err != nil {
		return found(warn("%s", lines(err)).Advise("see BUILDKITE_API_URL"))
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	list, err := client.Agents(ctx, m.Account.Organization.Slug)
	if err != nil {
		return found(warn("%s", lines(err)).Advise("the token needs scope read_agents and access to organization %s", m.Account.Organization.Slug))
	}
	all := m.eachSlot(func(s plan.Slot) Finding {
		if !m.waits(s) {
			return Finding{}
		}
		return listed(s, list)
	})
	if len(all) == 0 {
		return none("no slot waits for jobs")
	}
	return found(all...)
}

func listed(s plan.Slot, list []buildkite.Agent) Finding {
	named := slices.DeleteFunc(slices.Clone(list), func(a buildkite.Agent) bool { return a.Name != s.Agent })
	switch {
	case len(named) == 0:
		return fail("Buildkite does not list the agent").Advise("see sudo journalctl -u %s, and run sudo systemctl restart %[1]s", plan.AgentUnit(s.Index))
	case len(named) > 1:
		var hosts []string
		for _, a := range named {
			hosts = append(hosts, fmt.Sprintf("%.60s", a.Hostname))
		}
		return warn("%d agents are named %s, on %s", len(named), s.Agent, strings.Join(hosts, ", ")).
			Advise("give this node its own name: sudo kbnode install --node NAME")
	case named[0].Paused:
		return warn("the agent is paused in Buildkite and gets no jobs: %.200s", named[0].PausedNote).Advise("resume it in Buildkite, Agents")
	case !slices.Contains(named[0].Tags, "queue="+s.Queue):
		return fail("Buildkite does not list the agent in queue %s", s.Queue).By("systemctl restart %s", plan.AgentUnit(s.Index))
	}
	return ok("connected")
}
