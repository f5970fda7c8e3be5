package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// AgentTarget returns the version to which slots are to change: a given one, or that of a given
// binary.
func (n *Node) AgentTarget(ctx context.Context, version, binary string) (string, error) {
	if b := n.Config.Agent.Binary; b != "" {
		return "", fmt.Errorf("agent.binary in %s says that slots run %s; replace that file, and slots follow when they are idle, or delete the line and try again", plan.ConfigPath, b)
	}
	if binary == "" {
		return version, nil
	}
	given, err := askAgent(ctx, binary)
	return given.Version, err
}

// StoredAgent returns the release of a version that this machine already has; ok is false if it has
// none.
func (n *Node) StoredAgent(version string) (release plan.AgentRelease, ok bool) {
	if n.Agent.Version == version {
		_, err := os.Stat(filepath.Join(n.Root, plan.AgentBinary(version)))
		return n.Agent, err == nil
	}
	return plan.AgentRelease{}, n.Inventory.Software.Agent.Version == version
}

// ChangeAgent makes slots run a version of the agent, each when it is idle. It fetches and checks
// the release first, and changes nothing if that fails. The node must be locked and fresh.
func (n *Node) ChangeAgent(ctx context.Context, host *reconcile.Host, version, binary string) (reconcile.Result, error) {
	var release plan.AgentRelease
	err := n.askEndpoint(ctx, version)
	if err == nil {
		release, err = n.getAgent(ctx, version, binary)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("nothing was changed: %w", err)
	}
	if release.Version != n.Agent.Version {
		text := fmt.Sprintf("agents change from %s to %s", n.AgentName(n.Agent.Version), n.AgentName(release.Version))
		if err := host.WriteAgent(release); err != nil {
			return reconcile.Result{}, err
		}
		if err := (events.Log{File: events.Path}).Add(events.Event{Kind: "upgrade", Slot: -1, Text: text}); err != nil {
			n.Log.Warn("event not recorded", "err", err)
		}
	}
	if err := n.MakePlan(); err != nil {
		return reconcile.Result{}, err
	}
	return Converge(ctx, host, n.Plan)
}

// askEndpoint asks the endpoint of a version, if it is another one than that of the agents until now: a firewall may let
// only that one through, and all slots would lose Buildkite at once.
func (n *Node) askEndpoint(ctx context.Context, version string) error {
	configured, before := n.Config.Agent.Endpoint, cmp.Or(n.Agent.Version, n.Inventory.Software.Agent.Version)
	endpoint := plan.AgentEndpoint(configured, version)
	if endpoint == plan.AgentEndpoint(configured, before) {
		return nil
	}
	if err := agent.Reach(ctx, http.DefaultTransport, endpoint); err != nil {
		return fmt.Errorf("buildkite-agent %s connects to %w; let the firewall or proxy pass it, or write agent.endpoint: %s into %s to poll as before, and try again",
			version, err, config.PollingEndpoint, plan.ConfigPath)
	}
	return nil
}

// getAgent returns a release that is there, runs, and passes plan.CheckAgent. It removes what it has
// fetched and does not.
func (n *Node) getAgent(ctx context.Context, version, binary string) (plan.AgentRelease, error) {
	if release, ok := n.StoredAgent(version); ok {
		if release.Version == "" {
			return release, plan.CheckAgent(n.Inventory.Software.Agent)
		}
		return release, nil
	}
	file := filepath.Join(n.Root, plan.AgentBinary(version))
	_, err := os.Stat(file)
	kept := err == nil && binary == "" // the one before is, until all agents have registered
	switch {
	case kept:
	case binary != "":
		err = installer.Copy(file, 0o711, binary)
	default:
		err = n.fetchAgent(ctx, file, 0o711, version)
	}
	if err != nil {
		return plan.AgentRelease{}, err
	}
	a, err := askAgent(ctx, file)
	if err == nil && a.Version != version {
		err = fmt.Errorf("the archive of buildkite-agent %s contains %s; check agent.download_url", version, a.Version)
	}
	if err != nil && !kept {
		err = errors.Join(err, os.Remove(file))
	}
	return plan.AgentRelease{Version: a.Version, Keys: a.Keys}, err
}

// askAgent asks an agent that slots are to run for its version and options. One that cannot close a
// slot is an error.
func askAgent(ctx context.Context, file string) (inventory.Agent, error) {
	a, err := detect.AskAgent(ctx, file)
	if err == nil && len(a.Keys) == 0 {
		err = errors.New("it does not list its options")
	}
	if err == nil {
		err = plan.CheckAgentVersion(a.Version)
	}
	if err != nil {
		return a, fmt.Errorf("%s is not a buildkite-agent for this machine (%s): %w", file, runtime.GOARCH, err)
	}
	return a, plan.CheckAgent(a)
}

// AgentEndpoint returns where the agents connect to.
func (n *Node) AgentEndpoint() string {
	return plan.AgentEndpoint(n.Config.Agent.Endpoint, n.agentVersion())
}

// agentVersion returns the version of the slots' agents.
func (n *Node) agentVersion() string {
	if n.Config.Agent.Binary != "" {
		return n.Inventory.Software.Agent.Version
	}
	return cmp.Or(n.Agent.Version, n.Inventory.Software.Agent.Version)
}

// AgentName names a version for people; "" is the installed agent.
func (n *Node) AgentName(version string) string {
	if version == "" {
		return strings.TrimSpace("the installed buildkite-agent " + n.Inventory.Software.Agent.Version)
	}
	return "buildkite-agent " + version
}

// WaitConverged makes the slots' changes that wait for jobs when these are done.
func (n *Node) WaitConverged(ctx context.Context, host *reconcile.Host) error {
	for {
		state, err := host.Observe(ctx, n.Plan)
		if err != nil {
			return err
		}
		changes := slices.DeleteFunc(reconcile.Diff(n.Plan, state), func(c reconcile.Change) bool { return c.Slot < 0 })
		if len(changes) == 0 {
			return nil
		}
		if slices.ContainsFunc(changes, func(c reconcile.Change) bool { return c.Deferred == "" }) {
			if err := n.convergeLocked(ctx, host); err != nil {
				return err
			}
		}
		if err := limit.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (n *Node) convergeLocked(ctx context.Context, host *reconcile.Host) error {
	release, err := n.Lock(ctx, host)
	if err != nil {
		return err
	}
	defer release()
	if err := n.Refresh(ctx); err != nil {
		return err
	}
	_, err = Converge(ctx, host, n.Plan)
	return err
}
