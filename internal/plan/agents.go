package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

const (
	// AgentsPath records which agent releases slots run, if kbnode upgrade chose any.
	AgentsPath = "/var/lib/kbnode/agents.json"
	// AgentsDir holds those releases, each in its own directory, since slots may
	// run different ones.
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

// Agents records which agent slots run.
type Agents struct {
	Version  string         `json:"version"`        // "" is the installed one
	Releases []AgentRelease `json:"releases"`       // those in AgentsDir
	Roll     *AgentRoll     `json:"roll,omitempty"` // change in progress; nil for none
}

// AgentRelease is a downloaded agent and the configuration keys that it knows.
type AgentRelease struct {
	Version string   `json:"version"`
	Keys    []string `json:"keys"`
}

// AgentRoll is a change of all slots to another version, slot by slot.
type AgentRoll struct {
	To         string        `json:"to"`         // "" is the installed one
	Slots      []int         `json:"slots"`      // those that should run it already
	Registered []int         `json:"registered"` // those of Slots whose agent has registered
	Timeout    time.Duration `json:"timeout_ns"` // for an agent to register
}

// Of returns the version that a slot runs.
func (a Agents) Of(slot int) string {
	if a.Roll != nil && slices.Contains(a.Roll.Slots, slot) {
		return a.Roll.To
	}
	return a.Version
}

// Has reports whether a release is there.
func (a Agents) Has(version string) bool {
	return slices.ContainsFunc(a.Releases, func(r AgentRelease) bool { return r.Version == version })
}

// Begin returns the state in which slots change to a version. The same version again
// continues a change in progress; the version that slots come from cancels it.
func (a Agents) Begin(to string, timeout time.Duration) Agents {
	switch {
	case a.Roll != nil && a.Roll.To == to:
		roll := *a.Roll
		roll.Timeout = timeout
		a.Roll = &roll
	case a.Version == to:
		a.Roll = nil
	default:
		a.Roll = &AgentRoll{To: to, Slots: []int{}, Registered: []int{}, Timeout: timeout}
	}
	return a
}

// Used returns the releases that slots run or change to; unused reports whether
// there are others.
func (a Agents) Used() (used []AgentRelease, unused bool) {
	used = []AgentRelease{}
	for _, r := range a.Releases {
		if r.Version == a.Version || a.Roll != nil && r.Version == a.Roll.To {
			used = append(used, r)
		}
	}
	return used, len(used) < len(a.Releases)
}

// program returns the agent of a version, or installed if there is no such release.
func (a Agents) program(version string, installed inventory.Agent) inventory.Agent {
	for _, r := range a.Releases {
		if r.Version == version {
			return inventory.Agent{Path: AgentBinary(version), Version: version, Keys: r.Keys}
		}
	}
	return installed
}

// addReleases plans the modes of downloaded releases: each file is its own source.
func (p *Plan) addReleases(a Agents) {
	if len(a.Releases) > 0 {
		p.Dirs = append(p.Dirs, Dir{Path: AgentsDir, Mode: 0o755, Owner: "root"})
	}
	for _, r := range a.Releases {
		file := AgentBinary(r.Version)
		p.Dirs = append(p.Dirs, Dir{Path: AgentsDir + "/" + r.Version, Mode: 0o755, Owner: "root"})
		p.Files = append(p.Files, File{Path: file, Mode: 0o711, Owner: "root", Source: file, Slot: -1})
	}
}

// agentsFile is the content of AgentsPath.
type agentsFile struct {
	WrittenBy string `json:"written_by"`
	Schema    int    `json:"schema"`
	Agents
}

// ParseAgents reads the content of AgentsPath.
func ParseAgents(text []byte) (Agents, error) {
	var f agentsFile
	err := json.Unmarshal(text, &f)
	if err == nil && f.Schema != Schema {
		err = errors.New("it was written by another version of kbnode")
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return Agents{}, fmt.Errorf("read agents %s: %w; delete the file to run the installed agent in all slots", AgentsPath, err)
	}
	return f.Agents, nil
}

func (a Agents) check() error {
	for _, r := range a.Releases {
		if err := CheckAgentVersion(r.Version); err != nil {
			return err
		}
	}
	wanted := []string{a.Version}
	if a.Roll != nil {
		wanted = append(wanted, a.Roll.To)
	}
	for _, v := range wanted {
		if v != "" && !a.Has(v) {
			return fmt.Errorf("it has no release %q", v)
		}
	}
	return nil
}

// RenderAgents returns the content of AgentsPath.
func RenderAgents(a Agents) (string, error) {
	return renderJSON("agents", agentsFile{"kbnode", Schema, a})
}
