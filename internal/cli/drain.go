package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxDrainReason is the maximum length of an operator's reason, in characters: a table shows it.
const maxDrainReason = 200

type drainFlags struct {
	all, wait, mended bool
	reboot, yes       bool
	reason, until     string
	timeout           time.Duration
}

func newDrain(s term.Streams) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain [SLOT...]",
		Short: "Let slots finish their jobs and take no more, until resume",
		Long: `Let slots finish their jobs and take no more, until kbnode resume. A drain survives
reboots and ends no job. Write a slot as gpu3 or 3. Of two drains of a slot, the later
one counts.

--until ends the drain by itself. --reboot reboots the machine as soon as no slot has a
job, also if you log out meanwhile, and slots return after that; those that were drained
before stay drained. kbnode resume --all cancels it.`,
		Example: `  sudo kbnode drain gpu3 --reason 'new fan' --wait
  sudo kbnode drain gpu3 --until 18:00
  sudo kbnode drain --all --reboot`,
		Args: hints{s}.slotArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return drain(cmd.Context(), s, f, args) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "all slots of this node")
	cmd.Flags().StringVar(&f.reason, "reason", "", "reason to show in kbnode status")
	cmd.Flags().StringVar(&f.until, "until", "", "when slots take jobs again: 8h, 3d, 18:00, 2026-12-24 or 2026-12-24T18:00")
	cmd.Flags().BoolVar(&f.reboot, "reboot", false, "with --all: reboot the machine when the jobs are done, then take jobs again")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "with --reboot: ask nothing")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the jobs are done")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "with --wait: how long, such as 30m (default: no limit)")
	return cmd
}

func newResume(s term.Streams) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:     "resume [SLOT...]",
		Aliases: []string{"undrain"},
		Short:   "Let drained slots take jobs again",
		Long: `Let slots that kbnode drain drained take jobs again. A slot that a health verdict
drained returns by itself when the cause is gone and a short evaluation has passed,
unless its GPU failed too often (gpu.repeats): then this command returns it. It also
returns a GPU without the evaluation (gpu.proof).

Some drivers do not report that a GPU was reset. With --mended, earlier messages in
the kernel log about the slots' GPUs stop counting as soon as the GPUs answer.`,
		Example: `  sudo kbnode resume gpu3 --mended`,
		Args:    hints{s}.slotArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return resume(cmd.Context(), s, f, args) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "all slots of this node")
	cmd.Flags().BoolVar(&f.mended, "mended", false, "their GPUs were reset by hand, and kbnode did not notice")
	return cmd
}

func drain(ctx context.Context, s term.Streams, f drainFlags, args []string) error {
	if err := checkReason(f.reason); err != nil {
		return err
	}
	switch {
	case f.timeout < 0:
		return term.Usagef("--timeout cannot be negative; write how long to wait, such as 30m")
	case f.timeout != 0 && !f.wait:
		return term.Usagef("--timeout limits --wait; add --wait")
	case f.reboot && !f.all:
		return term.Usagef("--reboot ends the work of all slots; write kbnode drain --all --reboot")
	case f.reboot && f.until != "":
		return term.Usagef("--reboot lets slots take jobs again after the reboot; leave out --until or --reboot")
	case f.yes && !f.reboot:
		return term.Usagef("only --reboot asks; leave out --yes")
	}
	why := plan.Drain{Reason: f.reason}
	if f.until != "" {
		var err error
		if why.Until, err = text.ParseUntil(f.until, time.Now()); err != nil {
			return term.Usagef("--until: %v", err)
		}
	}
	selected := node.Selection{All: f.all, Names: args}
	if err := selected.Check(); err != nil {
		return err
	}
	n, host, err := change(ctx, s, "drain")
	if err != nil {
		return err
	}
	defer host.Close()
	if f.reboot {
		now, err := signals.Now()
		if err != nil {
			return err
		}
		why.Reboot = now.Boot
		if err := n.CheckReboot(); err != nil { // before it asks
			return err
		}
		if s.Asks() && !f.yes {
			if err := s.Confirm(ctx, "Reboot this machine as soon as no slot has a job?", ""); err != nil {
				return err
			}
		}
	}
	host.Log = nil // each slot has its own line
	p, slots, err := n.Drain(ctx, host.Host, selected, why, func(err error) { s.Warn("%v", err) })
	if err != nil {
		if f.reboot && node.RebootWaits(host.Host) {
			s.Warn("the machine reboots all the same when its slots are idle; sudo kbnode resume --all cancels that")
		}
		return err
	}
	switch {
	case f.reboot && len(slots) == 0:
		return errors.New("this node has no slots to wait for; type sudo systemctl reboot")
	case f.reboot:
		term.Printf(s.Out, "The machine reboots when these slots are idle; sudo kbnode resume --all cancels that.\n")
	case !why.Until.IsZero():
		term.Printf(s.Out, "Drained until %s.\n", why.Until.Format(plan.Dates))
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errors.New("the time given is over"))
		defer cancel()
	}
	return node.WaitDrained(ctx, host.Host, p, slots, f.wait, func(slot plan.Slot, now string) { term.Printf(s.Out, "%s: %s\n", slot.Name, now) })
}

func resume(ctx context.Context, s term.Streams, f drainFlags, args []string) error {
	selected := node.Selection{All: f.all, Names: args}
	if err := selected.Check(); err != nil {
		return err
	}
	n, host, err := change(ctx, s, "resume")
	if err != nil {
		return err
	}
	defer host.Close()
	if f.mended {
		if err := n.ReportResets(ctx, host.Host, selected); err != nil {
			return err
		}
	}
	if err := n.ReturnGPUs(ctx, host.Host, selected, f.mended); err != nil {
		return err
	}
	host.Log = nil // each slot has its own line
	slots, err := n.Resume(ctx, host.Host, selected, func(err error) { s.Warn("%v", err) })
	if err != nil {
		return err
	}
	held := false
	for _, sl := range slots {
		switch {
		case sl.User == "":
			term.Printf(s.Out, "%s: no longer a slot, and no longer drained\n", sl.Name)
			continue
		case sl.Parked != "":
			term.Printf(s.Out, "%s: still takes no jobs: %s\n", sl.Name, sl.Parked)
		case len(sl.Drains) > 0:
			term.Printf(s.Out, "%s: still %s\n", sl.Name, sl.Drains[0])
		default:
			term.Printf(s.Out, "%s: takes jobs\n", sl.Name)
			continue
		}
		held = true
	}
	return term.ExitUnless(!held, nil)
}

func checkReason(reason string) error {
	if n := len([]rune(reason)); n > maxDrainReason {
		return term.Usagef("--reason has %d characters; write at most %d", n, maxDrainReason)
	}
	if !text.Plain(reason) {
		return term.Usagef("--reason is shown in a table; write one line, without control characters")
	}
	return nil
}
