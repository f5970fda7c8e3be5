package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

type upgradeFlags struct {
	version, binary string
	timeout         time.Duration
	wait, dryRun    bool
}

func newUpgrade(s term.Streams) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade --agent-version VERSION",
		Short: "Change buildkite-agent to another version, slot by slot",
		Long: `Change the slots' buildkite-agent to another version, newer or older.

One idle slot runs it first. When its agent has registered with Buildkite, the others
follow one by one, busy ones after their job. If an agent does not register in time,
all slots return to the previous version. An interrupted upgrade continues by itself,
or with the same command.`,
		Example: `  sudo kbnode upgrade --agent-version 3.100.0 --wait
  sudo kbnode upgrade --agent-binary ./buildkite-agent`,
		RunE: func(cmd *cobra.Command, _ []string) error { return upgrade(cmd.Context(), s, f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.version, "agent-version", "", "the version to change to, such as "+plan.PinnedAgentVersion)
	fl.StringVar(&f.binary, "agent-binary", "", "buildkite-agent to change to, for machines without internet")
	fl.DurationVar(&f.timeout, "timeout", slot.RegisterTime, "how long an agent has to register with Buildkite")
	fl.BoolVar(&f.wait, "wait", false, "wait until slots that run a job have changed too")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would be done, and change nothing")
	return cmd
}

func (f upgradeFlags) check() error {
	switch {
	case f.version != "" && f.binary != "":
		return term.Usagef("--agent-binary determines the version; leave out --agent-version")
	case f.version == "" && f.binary == "":
		return term.Usagef("no version of buildkite-agent is given; write %s; to upgrade kbnode itself, replace it with apt or dnf, or %s; slots follow when they are idle", term.Line([]string{"upgrade", "--agent-version", plan.PinnedAgentVersion}), strings.ReplaceAll("sudo install -m 755 kbnode "+node.Binary, " ", term.Unbroken))
	case f.timeout < time.Second:
		return term.Usagef("--timeout %s is too short for an agent to register; write 1s or more", f.timeout)
	case f.version != "":
		return term.Usage(plan.CheckAgentVersion(f.version))
	}
	return term.CheckFile("--agent-binary", f.binary)
}

func upgrade(ctx context.Context, s term.Streams, f upgradeFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	n, host, err := change(ctx, s, "upgrade")
	if err != nil {
		return err
	}
	defer host.Close()
	release, err := n.WaitLock(ctx, host.LockUpgrade, ", which changes agents")
	if err != nil {
		return err
	}
	defer release()
	if err := n.Refresh(ctx); err != nil {
		return err
	}
	t, err := n.Target(ctx, host.Host, f.version, f.binary)
	if err != nil {
		return err
	}
	if f.dryRun {
		return dryUpgrade(ctx, s, n, host.Host, t)
	}
	to, fetched, err := t.Get(ctx, f.binary)
	if err != nil {
		return err
	}
	u := n.Upgrader(host.Host)
	host.Log = nil // each slot has its own line
	// Finish what was begun, however long the daemon's passes take.
	u.Lock = func(ctx context.Context) (func(), error) { return n.WaitLock(ctx, host.Lock, "") }
	u.Say = func(slot int, text string) { term.Printf(s.Out, "%s: %s\n", plan.SlotName(slot), text) }
	before := n.Agents
	if err := u.Begin(ctx, to, fetched, f.timeout); err != nil {
		return err
	}
	busy, err := u.Run(ctx, f.wait)
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; each slot has an agent, and the daemon or the same command continues from here")
	}
	switch {
	case err != nil:
		return err
	case len(busy) > 0:
		term.Printf(s.Out, "Later: %s %s the new agent when %s done; see sudo kbnode status and kbnode events.\n", node.SlotNames(busy), text.Plural(len(busy), "gets", "get"), text.Plural(len(busy), "its job is", "their jobs are"))
	case before.Version == to && before.Roll != nil:
		term.Printf(s.Out, "Rolled back: slots run %s again, those with a job when it is done.\n", u.Name(to))
	case before.Version == to:
		term.Printf(s.Out, "Nothing to change: slots run %s.\n", u.Name(to))
	default:
		term.Printf(s.Out, "All slots run %s.\n", u.Name(to))
	}
	return nil
}

func dryUpgrade(ctx context.Context, s term.Streams, n *node.Node, host *reconcile.Host, t *node.Target) error {
	name := node.VersionName(n.Inventory.Software.Agent)
	from := name(n.Agents.Version)
	to, known := t.Known()
	switch {
	case known && to == n.Agents.Version && n.Agents.Roll == nil:
		term.Printf(s.Out, "Nothing to change: slots run %s.\n", from)
		return nil
	case known:
		term.Printf(s.Out, "%s is already here.\n", name(to))
	default:
		term.Printf(s.Out, "buildkite-agent %s would be fetched and checked.\n", t.Version)
	}
	state, err := host.Observe(ctx, n.Plan)
	if err != nil {
		return err
	}
	for _, sl := range n.Plan.Slots {
		what := "changes in its turn; the first must register before the others change"
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
