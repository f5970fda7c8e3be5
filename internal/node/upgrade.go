package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// Target is the version of buildkite-agent that slots are to change to.
type Target struct {
	n       *Node
	host    *reconcile.Host
	Version string
}

// Target returns the version, or that of a given binary, as a target for the slots of this node,
// which must be fresh.
func (n *Node) Target(ctx context.Context, host *reconcile.Host, version, binary string) (*Target, error) {
	if b := n.Config.Agent.Binary; b != "" {
		return nil, fmt.Errorf("agent.binary in %s says that slots run %s; replace that file, and slots follow when they are idle, or delete the line and try again", plan.ConfigPath, b)
	}
	if binary != "" {
		given, err := askAgent(ctx, binary)
		if err != nil {
			return nil, err
		}
		version = given.Version
	}
	return &Target{n: n, host: host, Version: version}, nil
}

// file returns the path of its release, which may not exist yet.
func (t *Target) file() string { return filepath.Join(t.host.Root, plan.AgentBinary(t.Version)) }

// Known returns the version's name in agents.json, where "" means the installed agent, and
// reports whether the node already has it.
func (t *Target) Known() (to string, ok bool) {
	if t.n.Agents.Has(t.Version) {
		_, err := os.Stat(t.file())
		return t.Version, err == nil
	}
	return "", t.n.Inventory.Software.Agent.Version == t.Version
}

// Get makes sure that the version is there, runs, and passes plan.CheckAgent. If a release
// fails, Get removes it, and nothing has changed. release is nil unless one was fetched.
func (t *Target) Get(ctx context.Context, binary string) (to string, release *plan.AgentRelease, err error) {
	if to, ok := t.Known(); ok {
		if to == "" {
			err = plan.CheckAgent(t.n.Inventory.Software.Agent)
		}
		return to, nil, err
	}
	if binary != "" {
		err = installer.Copy(t.file(), 0o711, binary)
	} else {
		err = t.n.fetchAgent(ctx, t.file(), 0o711, t.Version)
	}
	if err == nil {
		release, err = t.prove(ctx)
	}
	if err != nil {
		if !t.n.Agents.Has(t.Version) {
			err = errors.Join(err, t.host.DropRelease(t.Version))
		}
		return "", nil, fmt.Errorf("nothing was changed: %w", err)
	}
	return t.Version, release, nil
}

// prove runs a fetched agent.
func (t *Target) prove(ctx context.Context) (*plan.AgentRelease, error) {
	a, err := askAgent(ctx, t.file())
	if err != nil {
		return nil, err
	}
	if a.Version != t.Version {
		return nil, fmt.Errorf("the archive of buildkite-agent %s contains %s; check agent.download_url", t.Version, a.Version)
	}
	return &plan.AgentRelease{Version: a.Version, Keys: a.Keys}, plan.CheckAgent(a)
}

// askAgent asks an agent that slots are to run for its version and options.
func askAgent(ctx context.Context, file string) (inventory.Agent, error) {
	a, err := inventory.AskAgent(ctx, file)
	if err == nil && len(a.Keys) == 0 {
		err = errors.New("it does not list its options")
	}
	if err == nil {
		err = plan.CheckAgentVersion(a.Version)
	}
	if err != nil {
		return a, fmt.Errorf("%s is not a buildkite-agent for this machine (%s): %w", file, runtime.GOARCH, err)
	}
	return a, nil
}

// VersionName returns a function that names a version of agents.json for people.
func VersionName(installed inventory.Agent) func(string) string {
	return func(version string) string {
		if version == "" {
			return strings.TrimSpace("the installed buildkite-agent " + installed.Version)
		}
		return "buildkite-agent " + version
	}
}

// Upgrader returns what changes the slots of this node, which must be fresh, to another version.
func (n *Node) Upgrader(host *reconcile.Host) *reconcile.Upgrade {
	return &reconcile.Upgrade{
		Host: host,
		Lock: func(ctx context.Context) (func(), error) { return n.Lock(ctx, host) },
		Plan: func(ctx context.Context) (*plan.Plan, error) {
			now := *n
			err := now.Refresh(ctx)
			return now.Plan, err
		},
		Name: VersionName(n.Inventory.Software.Agent),
		Why: func(ctx context.Context, slot plan.Slot) string {
			lines, err := agent.Journal(ctx, plan.AgentUnit(slot.Index), journalLines)
			if err != nil {
				return ""
			}
			return agent.LastWords(lines)
		},
		Events: events.Log{File: events.Path},
	}
}

// upgradePoll is the time between checks whether agents are to be changed.
const upgradePoll = 30 * time.Second

// ContinueUpgrades continues an upgrade of agents whose command has ended, until ctx ends. If
// there is none, it reads one small file.
func ContinueUpgrades(ctx context.Context, version string, log *slog.Logger) {
	logged := ""
	for limit.Sleep(ctx, upgradePoll) == nil {
		agents, err := (&reconcile.Host{Root: "/"}).ReadAgents()
		if _, unused := agents.Used(); err != nil || agents.Roll == nil && !unused {
			continue // every pass reports what is wrong with it
		}
		err = (&Node{Root: "/", Version: version, Log: log}).continueUpgrade(ctx)
		if _, locked := errors.AsType[*reconcile.LockedError](err); locked || ctx.Err() != nil {
			continue
		}
		now := ""
		if err != nil {
			now = err.Error()
		}
		if now != logged && err != nil {
			log.Warn("agents not changed", "err", err)
		}
		logged = now
	}
}

func (n *Node) continueUpgrade(ctx context.Context) error {
	host, err := n.Open(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	release, err := host.LockUpgrade()
	if err != nil {
		return err
	}
	defer release()
	if err := n.Refresh(ctx); err != nil {
		return err
	}
	u := n.Upgrader(host.Host)
	u.Say = func(slot int, text string) { n.Log.Info("agent changes", "slot", plan.SlotName(slot), "what", text) }
	_, err = u.Run(ctx, false)
	return err
}
