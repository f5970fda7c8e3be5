package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// agentKey is one key of buildkite-agent.cfg. The agent silently ignores keys
// that it does not know, so each is checked against what the agent lists.
type agentKey struct {
	name, value string
	must        bool // the slot would not be isolated without it
}

// The seconds that a canceled job has to end, and the total until it is killed:
// the runner writes a result.json, and Docker stops the container.
const (
	cancelSignalSeconds = 25
	cancelGraceSeconds  = 30
)

// agentKeys returns what a slot's agent of a version is configured with. binary is kbnode's path.
func agentKeys(cfg config.Config, s Slot, version, binary string) []agentKey {
	signal := strconv.Itoa(cancelSignalSeconds)
	pings := "auto" // a stream, and while there is none, polls
	if !AgentStreams(cfg.Agent.Endpoint, version) {
		pings = "poll-only"
	}
	return []agentKey{
		{"name", s.Agent, true},
		{"tags", strings.Join(s.Tags, ","), true},
		{"spawn", "1", false},
		{"endpoint", AgentEndpoint(cfg.Agent.Endpoint, version), true},
		{"ping-mode", pings, false}, // since 3.120
		{"build-path", BuildsDir(s.Index), true},
		{"hooks-path", HooksDir, true},
		{"sockets-path", RunDir(s.Index) + "/agent", true},

		// In place of the agent's own, which runs a shell, git, hooks and plugins with what a
		// build says.
		{"bootstrap-script", binary + " bootstrap --slot " + strconv.Itoa(s.Index) + " --agent " + AgentBinary(s.AgentVersion), true},

		// Nothing is left of a job for the next one: each agent runs one job, and its
		// unit's processes and in-memory directories end with it.
		{"disconnect-after-job", "true", true},

		// Major version 3 knows the first two, 4 the others.
		{"cancel-grace-period", strconv.Itoa(cancelGraceSeconds), false},
		{"signal-grace-period-seconds", signal, false},
		{"cancel-signal-timeout", signal + "s", false},
		{"cancel-cleanup-timeout", strconv.Itoa(cancelGraceSeconds-cancelSignalSeconds) + "s", false},
	}
}

// renderAgentConfig returns the keys that an agent understands as its configuration. An agent that does
// not list its keys knows those of its version.
func renderAgentConfig(agent inventory.Agent, keys []agentKey) (string, error) {
	known := func(name string) bool { return slices.Contains(agent.Keys, name) }
	if len(agent.Keys) == 0 {
		version := cmp.Or(agent.Version, PinnedAgentVersion)
		known = func(name string) bool {
			switch name {
			case "cancel-grace-period", "signal-grace-period-seconds":
				return AgentOlder(version, "4.0.0-0")
			case "cancel-signal-timeout", "cancel-cleanup-timeout":
				return !AgentOlder(version, "4.0.0-0")
			case "ping-mode":
				return !AgentOlder(version, "3.120.0")
			}
			return true
		}
	}
	var b strings.Builder
	b.WriteString(header + "# The token is not here: the unit reads it from a file of root.\n")
	var missing []string
	for _, k := range keys {
		switch {
		case known(k.name):
			// The agent knows no escapes, and strips all quotes at both ends.
			b.WriteString(k.name + `="` + k.value + "\"\n")
		case k.must:
			missing = append(missing, k.name)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("buildkite-agent %s at %s does not support %s, which isolation needs; upgrade it to %s or newer, or move it away and let kbnode install it",
			agent.Version, agent.Path, strings.Join(missing, ", "), PinnedAgentVersion)
	}
	return b.String(), nil
}

// CheckAgent returns an error if a slot would not be isolated with this agent.
func CheckAgent(agent inventory.Agent) error {
	_, err := renderAgentConfig(agent, agentKeys(config.Config{}, Slot{}, agent.Version, ""))
	return err
}
