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
		About: "only the slots' own agents take jobs",
		Run:   otherAgents,
	},
	{
		ID: "agent-binary", Group: "agent", Bare: true, Worst: Fail, Needs: []string{"plan"},
		About: "buildkite-agent is installed and runs",
		Run:   agentBinary,
	},
	{
		ID: "agent-version", Group: "agent", Bare: true, Worst: Warn, Needs: []string{"agent-binary"},
		About: "kbnode is tested with the agent's version",
		Run:   agentVersion,
	},
	{
		ID: "agent-endpoint", Group: "agent", Bare: true, Worst: Fail, Needs: []string{"config"},
		About: "Buildkite's agent API answers: name, connection, certificate, HTTP",
		Run:   agentEndpoint,
	},
	{
		ID: "agent-token", Group: "agent", Worst: Fail, Needs: []string{"installed"},
		About: "the token exists, is well-formed, and only root can read it",
		Run:   agentToken,
	},
	{
		ID: "agent-token-elsewhere", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		About: "no other file that jobs can read contains a token",
		Run:   tokenElsewhere,
	},
	{
		ID: "agent-token-accepted", Group: "agent", Worst: Fail, Needs: []string{"agent-token", "agent-endpoint"}, Limit: 16 * time.Second,
		About: "Buildkite accepts the token",
		Run:   tokenAccepted,
	},
	{
		ID: "agent-keys", Group: "agent", Worst: Fail, Needs: []string{"agent-binary", "installed"},
		About: "agents know every key in their configuration, and none is missing",
		Run:   agentKeys,
	},
	{
		ID: "agent-queue", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		About: "agents are tagged with the queue of their slot",
		Run:   agentQueue,
	},
	{
		ID: "agent-hooks", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		About: "hooks are executable, owned by root, and only kbnode's",
		Run:   agentHooks,
	},
	{
		ID: "agent-build-path", Group: "agent", Worst: Fail, Needs: []string{"plan", "installed"},
		About: "only the slot's user can write to its checkouts",
		Run:   buildPaths,
	},
	{
		ID: "agent-unit", Group: "agent", Worst: Fail, Needs: []string{"state"},
		About: "agents' services run as planned: restart, stop, slice, token",
		Run:   agentUnits,
	},
	{
		ID: "agent-guard", Group: "agent", Worst: Fail, Needs: []string{"state"},
		About: "each slot's Docker socket answers, and only its user may use it",
		Run:   guards,
	},
	{
		ID: "agent-running", Group: "agent", Worst: Fail, Needs: []string{"state", "agent-token-accepted"},
		About: "each serving slot's agent runs and is registered",
		Run:   agentsRunning,
	},
	{
		ID: "agent-drained", Group: "agent", Worst: Warn, Needs: []string{"state"},
		About: "no slot is drained or parked",
		Run:   drained,
	},
	{
		ID: "agent-git-https", Group: "agent", Worst: Warn, Needs: []string{"state", "system-git"}, Limit: 15 * time.Second,
		About: "git reaches the jobs' repositories over HTTPS as a slot's user",
		Run:   gitHTTPS,
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
