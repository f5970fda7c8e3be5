package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const (
	// AgentsPath records which agent release slots run, if kbnode upgrade chose one.
	AgentsPath = "/var/lib/kbnode/agents.json"
	// AgentsDir holds releases, each in its own directory: busy slots still run the one
	// before.
	AgentsDir = "/usr/local/libexec/kbnode/agents"
)

// AgentBinary returns the program of a release; for "", the copy of the installed
// agent. It is called buildkite-agent because jobs find it by that name.
func AgentBinary(version string) string {
	if version == "" {
		return AgentCopy
	}
	return AgentsDir + "/" + version + "/buildkite-agent"
}

// agentVersion matches the version of a release, which is part of a path and a URL.
var agentVersion = lazy.Regexp(`^[0-9]{1,9}(\.[0-9]{1,9}){2}(-[0-9A-Za-z]{1,32}(\.[0-9A-Za-z]{1,32}){0,4})?$`)

// CheckAgentVersion returns an error if v is not the version of a release.
func CheckAgentVersion(v string) error {
	if !agentVersion().MatchString(v) {
		return fmt.Errorf("%.80q is not a version of buildkite-agent; write one such as %s", v, PinnedAgentVersion)
	}
	return nil
}

// AgentRelease is an agent of AgentsDir that slots run, and the configuration keys that it
// knows. The zero value is the installed agent.
type AgentRelease struct {
	Version string   `json:"version"`
	Keys    []string `json:"keys"`
}

// program returns the agent of a release, or else the installed one.
func (r AgentRelease) program(installed inventory.Agent) inventory.Agent {
	if r.Version == "" {
		return installed
	}
	return inventory.Agent{Path: AgentBinary(r.Version), Version: r.Version, Keys: r.Keys}
}

// addRelease plans the mode of a downloaded release: the file is its own source.
func (p *Plan) addRelease(r AgentRelease) {
	if r.Version == "" {
		return
	}
	file := AgentBinary(r.Version)
	p.Dirs = append(p.Dirs, Dir{Path: AgentsDir, Mode: 0o755, Owner: "root"}, Dir{Path: path.Dir(file), Mode: 0o755, Owner: "root"})
	p.Files = append(p.Files, File{Path: file, Mode: 0o711, Owner: "root", Source: file, Slot: -1})
}

// agentFile is the content of AgentsPath.
type agentFile struct {
	WrittenBy string `json:"written_by"`
	Schema    int    `json:"schema"`
	AgentRelease
}

// ParseAgent reads the content of AgentsPath.
func ParseAgent(text []byte) (AgentRelease, error) {
	var f agentFile
	err := json.Unmarshal(text, &f)
	if err == nil && f.Schema != Schema {
		err = errors.New("it was written by another version of kbnode")
	}
	if err == nil && f.Version != "" {
		err = CheckAgentVersion(f.Version)
	}
	if err != nil {
		return AgentRelease{}, fmt.Errorf("read agents %s: %w; delete the file to run the installed agent in all slots", AgentsPath, err)
	}
	return f.AgentRelease, nil
}

// RenderAgent returns the content of AgentsPath.
func RenderAgent(r AgentRelease) (string, error) {
	return renderJSON("agents", agentFile{"kbnode", Schema, r})
}
