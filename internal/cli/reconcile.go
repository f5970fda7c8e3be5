package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
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

func newUninstall(s term.Streams) *cobra.Command {
	var now, dryRun bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove everything that kbnode set up, and restore the machine",
		Long: `Remove everything that kbnode set up: agents, slices, users and files, and restore
the machine's settings. Agents finish their jobs first, unless --now. What install --adopt
replaced is in ` + reconcile.BackupDir + `.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return uninstall(cmd.Context(), s, now, dryRun)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "end running jobs instead of waiting for them")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be removed, and remove nothing")
	cmd.Flags().BoolP("yes", "y", false, "accepted for scripts; uninstall does not ask")
	return cmd
}

func uninstall(ctx context.Context, s term.Streams, now, dryRun bool) error {
	_, host, closeHost, err := changeLocked(ctx, s, "uninstall")
	if err != nil {
		return err
	}
	defer closeHost()
	host.Now = now
	if gpus, err := signals.ReadGPUs(ctx, "/"); err == nil {
		host.GPUs = gpus.List // to restore their settings
	}
	if dryRun {
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

// whatStays says who removes the binary that uninstall ran from.
func whatStays(exe string) string {
	if exe == packagedBinary {
		return "The package kbnode stays; remove it with apt or dnf."
	}
	return "The binary " + exe + " stays; delete it by hand."
}
