package doctor

import (
	"errors"
	"io/fs"
	"net/url"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// agentChecks check the agents, through which jobs come.
var agentChecks = []Check{
	{
		ID: "agent-other", Group: "agent", Bare: true, Worst: Fail, Needs: []string{"system-systemd"},
		Doc:   "Another agent's jobs get all GPUs and CPUs. When it is idle, run `sudo systemctl disable --now buildkite-agent.service`. `systemctl status PID` says what started a process.",
		About: "only the slots' own agents take jobs",
		Run:   otherAgents,
	},
	{
		ID: "agent-binary", Group: "agent", Bare: true, Worst: Fail, Needs: []string{"plan"},
		Doc:   "`sudo kbnode install` downloads it; offline, use `sudo kbnode install --agent-binary ./buildkite-agent`.",
		About: "buildkite-agent is installed and runs",
		Run:   agentBinary,
	},
	{
		ID: "agent-version", Group: "agent", Bare: true, Worst: Warn, Needs: []string{"agent-binary"},
		Doc:   "`sudo kbnode upgrade --agent-version VERSION` [changes it](operations.md#a-new-agent), ending no job.",
		About: "kbnode is tested with the agent's version",
		Run:   agentVersion,
	},
	{
		ID: "agent-endpoint", Group: "agent", Bare: true, Worst: Fail, Needs: []string{"config"},
		Doc:   "Agents need TCP port 443 out to `agent.buildkite.com`. If the certificate is invalid, check the clock: `timedatectl`. Set a proxy in each agent's service: `sudo systemctl edit buildkite-agent-gpu0`, then `[Service]` and `Environment=HTTPS_PROXY=http://proxy:3128`.",
		About: "Buildkite's agent API answers: name, connection, certificate, HTTP",
		Run:   agentEndpoint,
	},
	{
		ID: "agent-token", Group: "agent", Worst: Fail, Needs: []string{"installed"},
		Doc:   "`/etc/buildkite-agent/token` holds one line `BUILDKITE_AGENT_TOKEN=…`, owner root, mode 0600. Copy a token from Buildkite (Agents, Agent Tokens) to a file, and run `sudo kbnode install --token-file FILE`.",
		About: "the token exists, is well-formed, and only root can read it",
		Run:   agentToken,
	},
	{
		ID: "agent-token-elsewhere", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		Doc:   "Remove an earlier setup's file, and make a new token. systemd shows `Environment=BUILDKITE_AGENT_TOKEN=` to everyone, whatever the unit's mode.",
		About: "no other file that jobs can read contains a token",
		Run:   tokenElsewhere,
	},
	{
		ID: "agent-token-accepted", Group: "agent", Worst: Fail, Needs: []string{"agent-token", "agent-endpoint"}, Limit: 16 * time.Second,
		Doc:   "It was revoked, expired or truncated. Agents end after their next job. Make a new one in the queue's cluster (Agents, Agent Tokens), and run `sudo kbnode install --token-file FILE`.",
		About: "Buildkite accepts the token",
		Run:   tokenAccepted,
	},
	{
		ID: "agent-keys", Group: "agent", Worst: Fail, Needs: []string{"agent-binary", "installed"},
		Doc:   "Agents silently ignore unknown keys in `buildkite-agent.cfg`, so the slot may not be isolated. `sudo kbnode reconcile` rewrites it.",
		About: "agents know every key in their configuration, and none is missing",
		Run:   agentKeys,
	},
	{
		ID: "agent-queue", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		Doc:   "With the wrong queue in `buildkite-agent.cfg`, jobs wait forever. `sudo kbnode reconcile` rewrites it; `sudo kbnode install --queue NAME` changes the queue.",
		About: "agents are tagged with the queue of their slot",
		Run:   agentQueue,
	},
	{
		ID: "agent-hooks", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		Doc:   "kbnode's hook `agent-startup` tells that an agent has registered; `sudo kbnode reconcile` writes it again. An operator's own `environment` and `pre-exit` run around each job if root owns them and no one else can change them. Other hooks do not belong there; `sudo kbnode install --adopt --yes` moves them to a backup.",
		About: "hooks are executable and owned by root, and jobs need no other",
		Run:   agentHooks,
	},
	{
		ID: "agent-unit", Group: "agent", Worst: Fail, Needs: []string{"state"},
		Doc:   "A drop-in or `systemctl set-property` changed a setting; the command removes it. A changed `Slice=` needs a restart: `sudo kbnode drain gpu0 --wait`, then `sudo kbnode resume gpu0`.",
		About: "agents' services run as planned: restart, stop, slice, token",
		Run:   agentUnits,
	},
	{
		ID: "agent-guard", Group: "agent", Worst: Fail, Needs: []string{"state"},
		Doc:   "See `sudo journalctl -u kbnode-guard-gpu0` for the socket `/run/kbnode/gpu0/docker.sock`. A restart does not disturb a job.",
		About: "each slot's service could start a job, and only its user may ask it to",
		Run:   guards,
	},
	{
		ID: "agent-running", Group: "agent", Worst: Fail, Needs: []string{"state", "agent-token-accepted"},
		Doc:   "Make a missing queue in Buildkite (Agents, the cluster, Queues), or replace a refused [token](#agent-token-accepted). See `sudo journalctl -u buildkite-agent-gpu0`.",
		About: "each serving slot's agent runs and is registered",
		Run:   agentsRunning,
	},
	{
		ID: "agent-drained", Group: "agent", Worst: Warn, Needs: []string{"state"},
		Doc:   "`sudo kbnode resume gpu0` gives the slot back.",
		About: "no slot is drained",
		Run:   drained,
	},
}

// planned returns the planned content of a file, or "" if the plan has no such file.
func (m *Machine) planned(name string) string {
	i := slices.IndexFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == name })
	if i < 0 {
		return ""
	}
	return m.Plan.Files[i].Content
}

// without returns the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(x string) bool { return slices.Contains(b, x) })
}

// because returns err without the path or URL, which the finding already names.
func because(err error) string {
	if u, is := errors.AsType[*url.Error](err); is {
		err = u.Err
	}
	if p, is := errors.AsType[*fs.PathError](err); is {
		err = p.Err
	}
	return lines(err)
}
