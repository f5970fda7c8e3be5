package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newReconcile(s term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "reconcile",
		Short: "Bring this node to its planned state once, as its service does",
		RunE:  func(cmd *cobra.Command, _ []string) error { return reconcileOnce(cmd.Context(), s) },
	}
}

func reconcileOnce(ctx context.Context, s term.Streams) error {
	n, host, closeHost, err := changeLocked(ctx, s, "reconcile")
	if err != nil {
		return err
	}
	defer closeHost()
	// Not earlier: the kbnode that held the lock may have written another configuration, or removed
	// everything.
	if err := n.Refresh(ctx); err != nil {
		return err
	}
	for _, w := range n.HookWarnings() {
		s.Warn("%s", w)
	}
	host.GPUs = n.Inventory.GPUs
	result, err := node.Converge(ctx, host.Host, n.Plan)
	warnChanges(s, result)
	if err != nil {
		return err
	}
	if len(result.Applied) == 0 && len(result.Deferred) == 0 {
		term.Printf(s.Out, "Nothing to change.\n")
		return nil
	}
	term.Printf(s.Out, "%s made.\n", changesWere(len(result.Applied)))
	printLater(s.Out, result.Deferred)
	return nil
}

type uninstallFlags struct{ now, dryRun, yes bool }

func newUninstall(s term.Streams) *cobra.Command {
	var f uninstallFlags
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove everything that kbnode set up, and restore the machine",
		Long: `Remove everything that kbnode set up: agents, slices, users and files, and restore
the machine's settings. Agents finish their jobs first, unless --now. What install --adopt
replaced is in ` + reconcile.BackupDir + `.

On a terminal, uninstall shows what goes and which jobs run, and asks before it begins.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return uninstall(cmd.Context(), s, f) },
	}
	cmd.Flags().BoolVar(&f.now, "now", false, "end running jobs instead of waiting for them")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would be removed, and remove nothing")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "ask nothing")
	return cmd
}

func uninstall(ctx context.Context, s term.Streams, f uninstallFlags) error {
	n, host, err := change(ctx, s, "uninstall")
	if err != nil {
		return err
	}
	defer host.Close()
	host.Now = f.now
	if gpus, err := signals.ReadGPUs(ctx, "/"); err == nil {
		host.GPUs = gpus.List // to restore their settings
	}
	if err := confirmUninstall(ctx, s, f, host.Host); err != nil {
		return err
	}
	release, err := n.Lock(ctx, host.Host)
	if err != nil {
		return err
	}
	defer release()
	if f.dryRun {
		nothing := &plan.Plan{}
		state, err := host.Observe(ctx, nothing)
		if err != nil {
			return err
		}
		printDryRun(s.Out, reconcile.Diff(nothing, state))
		return nil
	}
	end := showProgress(s, host.Host)
	result, err := host.Uninstall(ctx, func(jobs []string) {
		end()
		s.Progress("waiting for %s; sudo kbnode uninstall --now ends it", strings.Join(jobs, ", "))
	})
	end()
	warnChanges(s, result)
	if err != nil {
		return fmt.Errorf("%w\nfix this and type %s to continue", err, s.Again())
	}
	if len(result.Applied) == 0 {
		term.Printf(s.Out, "Nothing to remove: kbnode set up nothing here.\n")
		return nil
	}
	if _, err := os.Stat(reconcile.BackupDir); err == nil {
		term.Printf(s.Out, "Files of an earlier setup are in %s.\n", reconcile.BackupDir)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find kbnode's own path: %w", err)
	}
	term.Printf(s.Out, "Removed: %s made. %s\n", changesWere(len(result.Applied)), whatStays(exe))
	if len(result.Warnings) > 0 {
		return errors.New("not everything is as it was before kbnode; restore by hand what the warnings name, or reboot")
	}
	return nil
}

// confirmUninstall shows a person what goes, and asks. A script is not asked. It holds no lock: the daemon and other
// commands do not wait for a person.
func confirmUninstall(ctx context.Context, s term.Streams, f uninstallFlags, host *reconcile.Host) error {
	if !s.Asks() || f.yes || f.dryRun {
		return nil
	}
	nothing := &plan.Plan{}
	state, err := host.Observe(ctx, nothing)
	if err != nil {
		return err
	}
	changes := reconcile.Diff(nothing, state)
	if len(changes) == 0 {
		return nil
	}
	if slots := slotNames(slices.DeleteFunc(slices.Clone(changes), func(c reconcile.Change) bool { return c.Slot < 0 })); slots != "" {
		term.Printf(s.Err, "Slots to be removed: %s\n", slots)
	}
	for _, job := range state.Busy() {
		if host.Now {
			term.Printf(s.Err, "To be ended: %s\n", job)
		} else {
			term.Printf(s.Err, "To be waited for: %s; --now ends it\n", job)
		}
	}
	return s.Confirm(ctx, fmt.Sprintf("Remove everything that kbnode set up (%s)?", changeCount(len(changes))), "")
}

// whatStays says who removes the binary that uninstall ran from.
func whatStays(exe string) string {
	if exe == packagedBinary {
		return "The package kbnode stays; remove it with apt or dnf."
	}
	return "The binary " + exe + " stays; delete it by hand."
}
