package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// usableBinary refuses to write units that start a kbnode that others could replace, or that may
// soon be gone.
func usableBinary(exe string) error {
	for part := exe; ; part = filepath.Dir(part) {
		fi, err := os.Stat(part)
		if err != nil {
			return fmt.Errorf("check kbnode's own path: %w", err)
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("check kbnode's own path: %s has no owner", part)
		}
		if err := usablePart(exe, part, st.Uid, fi.Mode().Perm()); err != nil || part == "/" {
			return err
		}
	}
}

// usablePart is usableBinary for exe itself or one of the directories above it.
func usablePart(exe, part string, owner uint32, mode fs.FileMode) error {
	var why, fix string
	switch {
	case slices.Contains([]string{"/tmp", "/var/tmp", "/home", "/root", "/run", "/dev/shm"}, part):
		why = "is not permanent"
	case owner != 0:
		why, fix = fmt.Sprintf("belongs to user %d", owner), "chown root "+part
	case mode&0o022 != 0:
		why, fix = fmt.Sprintf("has mode %#o", mode), "chmod go-w "+part
	default:
		return nil
	}
	// What is wrong with Binary's own path is wrong with a copy, too.
	if !strings.HasPrefix(Binary+"/", strings.TrimSuffix(part, "/")+"/") {
		fix = fmt.Sprintf("install -m 755 %s %s", exe, Binary)
	}
	return fmt.Errorf("kbnode runs from %s, but units need a permanent path that only root can change, and %s %s; type sudo %s", exe, part, why, fix)
}

// errNoToken means that findToken found no token. It may still come: an image does not have it.
var errNoToken = errors.New("no agent token is given; write the token from Buildkite (Agents, Agent Tokens) to a file and add --token-file FILE, or set BUILDKITE_AGENT_TOKEN")

// findToken returns the agent token of the environment, or else of an earlier install, or of what
// --adopt takes over, in this order.
func findToken(root string, env func(string) string, adopt bool) (string, error) {
	if v := env("BUILDKITE_AGENT_TOKEN"); v != "" {
		return agent.ParseToken([]byte(v))
	}
	token, err := agent.ReadToken(filepath.Join(root, plan.TokenPath))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if adopt {
		old, _ := filepath.Glob(filepath.Join(root, "/etc/buildkite-agent/buildkite-agent*.cfg"))
		older, _ := filepath.Glob(filepath.Join(root, "/etc/buildkite-agent/agent-*/buildkite-agent.cfg"))
		for _, file := range append(old, older...) {
			if token, err := agent.ReadToken(file); err == nil {
				return token, nil
			}
		}
	}
	return "", errNoToken
}

// WriteToken writes the token where the agents' units read it. It keeps an operator's token file
// that has the same token.
func WriteToken(host *reconcile.Host, token string) (wrote bool, err error) {
	if err := mayWriteToken(host, token); err != nil {
		return false, err
	}
	file := filepath.Join(host.Root, plan.TokenPath)
	if have, err := agent.ReadToken(file); err != nil || have != token {
		return true, host.WriteInput(plan.TokenPath, agent.RenderToken(token))
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return false, fmt.Errorf("close token file: %w", err)
	}
	return false, nil
}

// mayWriteToken refuses to replace an operator's token file that has another token, unless the
// node's agents already use that file.
func mayWriteToken(host *reconcile.Host, token string) error {
	text, err := os.ReadFile(filepath.Join(host.Root, plan.TokenPath))
	if errors.Is(err, fs.ErrNotExist) || host.Adopt || plan.IsMarked(string(text)) {
		return nil
	}
	if have, err := agent.ParseToken(text); err == nil && have == token {
		return nil
	}
	// Only an installation that accepted the file has written the bindings.
	if _, err := os.Stat(filepath.Join(host.Root, plan.BindingsPath)); err == nil {
		return nil
	}
	return fmt.Errorf("%s contains a different token and was not written by kbnode; delete it, or use --adopt to replace it", plan.TokenPath)
}

// fetchAgent fetches a release of the agent.
func (n *Node) fetchAgent(ctx context.Context, dest string, mode fs.FileMode, version string) error {
	n.say("fetching buildkite-agent %s", version)
	return installer.Fetch(ctx, dest, mode, installer.AgentRelease{
		Version: version, Arch: runtime.GOARCH, URL: n.Config.Agent.DownloadURL, SHA256: n.Config.Agent.DownloadSHA256,
	})
}

// sayOldAgent says so if slots are to run an agent that was there before, and that Buildkite does not support much longer.
func (n *Node) sayOldAgent(now time.Time) {
	version := cmp.Or(n.Agent.Version, n.Inventory.Software.Agent.Version)
	if s := plan.SupportOfAgent(version); n.Config.Agent.Binary == "" && !s.Ends.IsZero() && !now.Before(s.Warns) && plan.AgentOlder(version, plan.PinnedAgentVersion) {
		n.say("slots run buildkite-agent %s, supported by Buildkite until %s; sudo kbnode upgrade --agent-version %s changes it", version, s.Ends.Format(time.DateOnly), plan.PinnedAgentVersion)
	}
}

// installAgent makes sure that there is a buildkite-agent: the given binary, the one that is
// there, or the pinned release. A binary that slots cannot run replaces nothing. If it installed one, it reads and plans the machine again with
// what that agent understands.
func (n *Node) installAgent(ctx context.Context, host *reconcile.Host, binary string) (fetched bool, err error) {
	switch {
	case binary != "":
		if _, err = n.AgentTarget(ctx, "", binary); err == nil {
			err = installer.Copy(filepath.Join(n.Root, installer.AgentPath), 0o755, binary)
		}
		if err == nil && n.Agent.Version != "" {
			n.say("slots run this agent, not the one that kbnode upgrade chose")
			err = host.WriteAgent(plan.AgentRelease{})
		}
	case n.Inventory.Software.Agent.Path != "":
		n.sayOldAgent(time.Now())
		return false, nil
	default:
		err = n.fetchAgent(ctx, installer.AgentPath, 0o755, plan.PinnedAgentVersion)
	}
	if err == nil {
		err = n.Read(ctx)
	}
	if err != nil {
		return false, err
	}
	if n.Inventory.Software.Agent.Version == "" {
		return false, fmt.Errorf("%s does not report its version; give a buildkite-agent for this machine (%s) with --agent-binary", installer.AgentPath, runtime.GOARCH)
	}
	return true, n.MakePlan()
}
