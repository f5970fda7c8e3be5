package plan

import (
	"time"

	"golang.org/x/mod/semver"

	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// PinnedAgentVersion is the agent that install fetches if there is none: the last line of major
// version 3. What is known of 4 is in TestAgentConfigKnowsTheAgent.
const PinnedAgentVersion = "3.138.3"

// streamingAgentVersion is the first agent that does well with streaming job dispatch and one job per
// process. Those from 3.122 on stay idle for a minute after each job:
// https://github.com/buildkite/agent/issues/3994.
const streamingAgentVersion = "3.128.0"

// AgentOlder reports whether a version of the agent is older than another one. What is no version is
// older than all that are.
func AgentOlder(version, than string) bool { return semver.Compare("v"+version, "v"+than) < 0 }

// AgentStreams reports whether a version of the agent, "" for the one that install fetches, has Buildkite send it its jobs
// at once, if the configuration says endpoint. Otherwise it asks for a job every few seconds.
func AgentStreams(endpoint, version string) bool {
	return !config.Polls(endpoint) && (version == "" || !AgentOlder(version, streamingAgentVersion))
}

// AgentEndpoint returns where such an agent connects to.
func AgentEndpoint(endpoint, version string) string {
	if endpoint == config.DefaultEndpoint && !AgentStreams(endpoint, version) {
		return config.PollingEndpoint
	}
	return endpoint
}

// agentLines has the day, in UTC, of the first stable release of each minor version that is still supported when
// https://buildkite.com/docs/agent/version-support-policy takes effect. The days are those of
// https://buildkite.com/docs/agent/self-hosted/versions-directory and of the tags of github.com/buildkite/agent.
var agentLines = map[string]string{
	"v3.116": "2026-01-29", "v3.117": "2026-02-03", "v3.118": "2026-02-16", "v3.119": "2026-03-04", "v3.120": "2026-03-13",
	"v3.121": "2026-03-31", "v3.122": "2026-04-09", "v3.123": "2026-04-14", "v3.124": "2026-04-28", "v3.125": "2026-05-04",
	"v3.126": "2026-05-07", "v3.127": "2026-05-13", "v3.128": "2026-06-17", "v3.129": "2026-06-24", "v3.130": "2026-07-01",
	"v3.131": "2026-07-06", "v3.132": "2026-07-10", "v3.133": "2026-07-17", "v3.134": "2026-07-23", "v3.135": "2026-07-29",
	"v3.136": "2026-08-04", "v3.137": "2026-08-11", "v3.138": "2026-09-03",
	"v4.0": "2026-09-01", "v4.1": "2026-10-01", "v4.2": "2026-10-05", "v4.3": "2026-10-08", "v4.4": "2026-10-12",
	"v4.5": "2026-10-15", "v4.6": "2026-10-16", "v4.7": "2026-10-20", "v4.8": "2026-10-22", "v4.9": "2026-10-30", "v4.10": "2026-11-05",
}

// agentPolicyBegins is when all older ones are out of support.
var agentPolicyBegins = time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC)

// AgentSupport is how long Buildkite supports an agent.
type AgentSupport struct {
	Warns time.Time // three months before: from then on, the agent is deprecated, and Buildkite warns in job logs
	Ends  time.Time
}

// SupportOfAgent returns how long Buildkite supports a version of the agent: a year from the first release of its minor version.
// It is the zero value for one that came after this kbnode, and for what is no version.
func SupportOfAgent(version string) AgentSupport {
	v := "v" + version
	if !semver.IsValid(v) {
		return AgentSupport{}
	}
	ends := agentPolicyBegins
	if first, err := time.Parse(time.DateOnly, agentLines[semver.MajorMinor(v)]); err == nil {
		ends = first.AddDate(1, 0, 0)
	} else if semver.Compare(v, "v3.116.0") >= 0 {
		return AgentSupport{}
	}
	return AgentSupport{ends.AddDate(0, -3, 0), ends}
}
