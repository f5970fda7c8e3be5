package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

// agentKey is one key of buildkite-agent.cfg. The agent silently ignores keys
// that it does not know, so each is checked against what the installed one lists.
type agentKey struct {
	name  string
	value func(agentInput) string
	// must is set if the slot would not be isolated without the key.
	must bool
}

// agentInput is what the configuration of a slot's agent depends on.
type agentInput struct {
	config config.Config
	slot   Slot
	binary string // of kbnode
}

func fixed(v string) func(agentInput) string {
	return func(agentInput) string { return v }
}

func fromSlot(f func(Slot) string) func(agentInput) string {
	return func(in agentInput) string { return f(in.slot) }
}

func fromConfig(f func(config.Config) string) func(agentInput) string {
	return func(in agentInput) string { return f(in.config) }
}

// The seconds that a canceled job has to end, and the total until it is killed:
// the runner writes a result.json, and Docker stops the container.
const (
	cancelSignalSeconds = 25
	cancelGraceSeconds  = 30
)

var agentKeys = []agentKey{
	{name: "name", value: fromSlot(func(s Slot) string { return s.Agent }), must: true},
	{name: "tags", value: fromSlot(func(s Slot) string { return strings.Join(s.Tags, ",") }), must: true},
	{name: "spawn", value: fixed("1")},
	{name: "endpoint", value: fromConfig(func(c config.Config) string { return c.Agent.Endpoint }), must: true},
	{name: "build-path", value: fromSlot(func(s Slot) string { return BuildsDir(s.Index) }), must: true},
	{name: "hooks-path", value: fixed(HooksDir), must: true},
	{name: "sockets-path", value: fromSlot(func(s Slot) string { return RunDir(s.Index) + "/agent" }), must: true},

	// In place of the agent's own, which runs a shell, git, hooks and plugins with what a
	// build says.
	{name: "bootstrap-script", must: true, value: func(in agentInput) string {
		return in.binary + " bootstrap --slot " + strconv.Itoa(in.slot.Index) + " --agent " + AgentBinary(in.slot.AgentVersion)
	}},

	// Nothing is left of a job for the next one: each agent runs one job, and its
	// unit's processes and in-memory directories end with it.
	{name: "disconnect-after-job", value: fixed("true"), must: true},

	// Major version 3 knows the first two, 4 the others.
	{name: "cancel-grace-period", value: fixed(strconv.Itoa(cancelGraceSeconds))},
	{name: "signal-grace-period-seconds", value: fixed(strconv.Itoa(cancelSignalSeconds))},
	{name: "cancel-signal-timeout", value: fixed(strconv.Itoa(cancelSignalSeconds) + "s")},
	{name: "cancel-cleanup-timeout", value: fixed(strconv.Itoa(cancelGraceSeconds-cancelSignalSeconds) + "s")},
}

// agentKeysFor chooses the keys that the installed agent understands. Without
// an installed agent they are those of major version 3, which install fetches.
func agentKeysFor(agent inventory.Agent) ([]agentKey, error) {
	known := func(name string) bool { return slices.Contains(agent.Keys, name) }
	if len(agent.Keys) == 0 {
		v4 := strings.HasPrefix(agent.Version, "4.")
		known = func(name string) bool {
			switch name {
			case "cancel-grace-period", "signal-grace-period-seconds":
				return !v4
			case "cancel-signal-timeout", "cancel-cleanup-timeout":
				return v4
			}
			return true
		}
	}
	var keys []agentKey
	var missing []string
	for _, k := range agentKeys {
		switch {
		case known(k.name):
			keys = append(keys, k)
		case k.must:
			missing = append(missing, k.name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("buildkite-agent %s at %s does not support %s, which isolation needs; upgrade it to %s or newer, or move it away and let kbnode install it",
			agent.Version, agent.Path, strings.Join(missing, ", "), PinnedAgentVersion)
	}
	return keys, nil
}

// PinnedAgentVersion is the agent that install fetches if there is none.
const PinnedAgentVersion = "3.76.2"

func renderAgentConfig(keys []agentKey, in agentInput) string {
	var b strings.Builder
	b.WriteString(header)
	b.WriteString("# The token is not here: the unit hands it over as a systemd credential.\n")
	for _, k := range keys {
		// The agent knows no escapes, and strips all quotes at both ends.
		b.WriteString(k.name + `="` + k.value(in) + "\"\n")
	}
	return b.String()
}
