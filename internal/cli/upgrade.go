package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type upgradeFlags struct {
	version, binary, bundle string
	timeout                 time.Duration
	wait, dryRun            bool
}

func newUpgrade(s term.Streams) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade --agent-version VERSION",
		Short: "Change buildkite-agent to another version",
		Long: `Change the slots' buildkite-agent to another version, newer or older.

Idle slots change at once, busy ones after their job. If an agent does not register with
Buildkite in time, change back with the same command and the previous version.`,
		Example: `  sudo kbnode upgrade --agent-version 3.100.0 --wait
  sudo kbnode upgrade --agent-binary ./buildkite-agent
  sudo kbnode upgrade --bundle kbnode-bundle.tar`,
		RunE: func(cmd *cobra.Command, _ []string) error { return upgrade(cmd.Context(), s, f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.version, "agent-version", "", "the version to change to, such as "+plan.PinnedAgentVersion)
	fl.StringVar(&f.binary, "agent-binary", "", "buildkite-agent to change to, for machines without internet")
	fl.StringVar(&f.bundle, "bundle", "", "file of kbnode bundle create to take the agent from")
	fl.DurationVar(&f.timeout, "timeout", slot.RegisterTime, "how long to wait for the next agent to register with Buildkite")
	fl.BoolVar(&f.wait, "wait", false, "wait until slots that run a job have changed too")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would be done, and change nothing")
	return cmd
}

func (f upgradeFlags) check(s term.Streams) error {
	switch {
	case f.bundle != "" && f.version+f.binary != "":
		return term.Usagef("--bundle has one buildkite-agent; leave out --agent-version and --agent-binary")
	case f.version != "" && f.binary != "":
		return term.Usagef("--agent-binary determines the version; leave out --agent-version")
	case f.version+f.binary+f.bundle == "":
		return term.Usagef("no version of buildkite-agent is given; write %s; to upgrade kbnode itself, replace it with apt or dnf, or %s; slots follow when they are idle", s.Line([]string{"upgrade", "--agent-version", plan.PinnedAgentVersion}), strings.ReplaceAll("sudo install -m 755 kbnode "+node.Binary, " ", term.Unbroken))
	case f.timeout < time.Second:
		return term.Usagef("--timeout %s is too short for an agent to register; write 1s or more", f.timeout)
	case f.version != "":
		return term.Usage(plan.CheckAgentVersion(f.version))
	}
	if err := term.CheckFile("--bundle", f.bundle); err != nil {
		return err
	}
	return term.CheckFile("--agent-binary", f.binary)
}

func upgrade(ctx context.Context, s term.Streams, f upgradeFlags) error {
	if err := f.check(s); err != nil {
		return err
	}
	n, host, err := change(ctx, s, "upgrade")
	if err != nil {
		return err
	}
	defer host.Close()
	b, closeBundle, err := openBundle(f.bundle)
	if err != nil {
		return err
	}
	defer closeBundle()
	if b != nil {
		f.version = b.Agent.Version
	}
	release, err := n.Lock(ctx, host.Host)
	if err != nil {
		return err
	}
	defer func() { release() }()
	if err := n.Refresh(ctx); err != nil {
		return err
	}
	version, err := n.AgentTarget(ctx, f.version, f.binary)
	if err != nil {
		return err
	}
	before := n.Agent.Version
	stored, ok := n.StoredAgent(version)
	if f.dryRun {
		return dryUpgrade(ctx, s, n, host.Host, version, f.bundle, stored, ok)
	}
	if b != nil && !ok {
		program, remove, err := n.UnpackAgent(ctx, b)
		if err != nil {
			return err
		}
		defer remove()
		f.binary = program
	}
	host.Log = nil // what it does has its own lines
	result, err := n.ChangeAgent(ctx, host.Host, version, f.binary)
	if err != nil {
		return err
	}
	release()
	release = func() {}
	if err := waitUpgraded(ctx, s, n, host.Host, f, result.Deferred); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; each slot has an agent, and the daemon changes the others when their jobs are done")
		}
		back := before
		if back == "" {
			back = n.Inventory.Software.Agent.Version
		}
		if n.Agent.Version != before {
			s.Warn("to go back, type sudo kbnode upgrade --agent-version %s", back)
		}
		return err
	}
	name := n.AgentName(n.Agent.Version)
	var later []plan.Slot
	for _, sl := range n.Plan.Slots {
		if !f.wait && slices.ContainsFunc(result.Deferred, func(c reconcile.Change) bool { return c.Slot == sl.Index }) {
			later = append(later, sl)
		}
	}
	switch {
	case len(later) > 0:
		term.Printf(s.Out, "Later: %s %s %s when %s done; see sudo kbnode status and kbnode events.\n", node.SlotNames(later), text.Plural(len(later), "gets", "get"), name, text.Plural(len(later), "its job is", "their jobs are"))
	case n.Agent.Version == before:
		term.Printf(s.Out, "Nothing to change: slots run %s.\n", name)
	default:
		term.Printf(s.Out, "All slots run %s.\n", name)
	}
	return nil
}

// waitRegistered waits for the agents, and shows how many have registered.
func waitRegistered(ctx context.Context, s term.Streams, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change, within time.Duration) error {
	w := agentProgress{term.NewProgress(s)}
	err := node.WaitRegistered(ctx, p, host, deferred, within, w.show, func(p plan.Slot, reason string) {
		w.end()
		s.Warn("slot %s is parked: %s", p.Name, reason)
	})
	w.end()
	return notLate(s, err)
}

// waitUpgraded waits until the agents that have changed are registered, and if asked for, until all
// have changed.
func waitUpgraded(ctx context.Context, s term.Streams, n *node.Node, host *reconcile.Host, f upgradeFlags, deferred []reconcile.Change) error {
	if err := waitRegistered(ctx, s, n.Plan, host, deferred, f.timeout); err != nil || !f.wait || len(deferred) == 0 {
		return err
	}
	if err := n.WaitConverged(ctx, host); err != nil {
		return err
	}
	return waitRegistered(ctx, s, n.Plan, host, nil, f.timeout)
}

func dryUpgrade(ctx context.Context, s term.Streams, n *node.Node, host *reconcile.Host, version, bundle string, stored plan.AgentRelease, ok bool) error {
	from := n.AgentName(n.Agent.Version)
	switch {
	case ok && stored.Version == n.Agent.Version:
		term.Printf(s.Out, "Nothing to change: slots run %s.\n", from)
		return nil
	case ok:
		term.Printf(s.Out, "%s is already here.\n", n.AgentName(stored.Version))
	case bundle != "":
		term.Printf(s.Out, "buildkite-agent %s would be taken from %s and checked.\n", version, bundle)
	default:
		term.Printf(s.Out, "buildkite-agent %s would be fetched and checked.\n", version)
	}
	state, err := host.Observe(ctx, n.Plan)
	if err != nil {
		return err
	}
	for _, sl := range n.Plan.Slots {
		what := "changes at once"
		switch ss := state.Slot(sl.Index); {
		case !sl.Serves():
			what = "takes no jobs now; it gets the new agent when it does"
		case ss.Busy() != "" || ss.Agent.Stopping():
			what = "finishes its job first, then changes"
		}
		term.Printf(s.Out, "%s: %s\n", sl.Name, what)
	}
	term.Printf(s.Out, "Slots run %s now; nothing was changed.\n", from)
	return nil
}
