package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

// maxDrainReason is the maximum length of an operator's reason, in characters: a table shows it.
const maxDrainReason = 200

// drainFlags are the flags of drain and resume.
type drainFlags struct {
	all     bool
	reason  string
	wait    bool
	timeout time.Duration
	reset   bool
}

func newDrain(s Streams) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain [SLOT...]",
		Short: "Let slots finish their jobs and take no more, until resume",
		Long: `Let slots finish their jobs and take no more, until kbnode resume. A drain survives
reboots and ends no job. Write a slot as gpu3 or 3.`,
		Example: `  sudo kbnode drain gpu3 --reason 'new fan' --wait
  sudo kbnode drain --all`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return drain(cmd.Context(), s, f, args) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "all slots of this node")
	cmd.Flags().StringVar(&f.reason, "reason", "", "reason to show in kbnode status")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the jobs are done")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "with --wait: how long to wait, such as 30m (default: no limit)")
	return cmd
}

func newResume(s Streams) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:     "resume [SLOT...]",
		Aliases: []string{"undrain"},
		Short:   "Let drained slots take jobs again",
		Long: `Let slots that kbnode drain drained take jobs again. A slot that a health verdict
drained returns by itself when the cause is gone.

Some drivers do not report that a GPU was reset. --mended does: earlier messages in
the kernel log about the slots' GPUs stop counting as soon as the GPUs answer. Other
faults of these GPUs still count.`,
		Example: `  sudo kbnode resume gpu3
  sudo kbnode resume gpu3 --mended`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return resume(cmd.Context(), s, f, args) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "all slots of this node")
	cmd.Flags().BoolVar(&f.reset, "mended", false, "their GPUs were reset by hand, and kbnode did not notice")
	return cmd
}

func drain(ctx context.Context, s Streams, f drainFlags, args []string) error {
	if err := checkReason(f.reason); err != nil {
		return err
	}
	if f.timeout != 0 && !f.wait {
		return usagef("--timeout limits --wait; add --wait")
	}
	now := time.Now().UTC().Truncate(time.Second)
	p, host, err := changeDrains(ctx, s, "drain", f.all, args, func(drains []plan.Drain, slot int) []plan.Drain {
		return plan.AddDrain(drains, plan.Drain{Slot: slot, By: plan.ByOperator, Reason: f.reason, Since: now})
	})
	if err != nil {
		return err
	}
	defer host.close()
	slots, err := chosenSlots(p, f.all, args)
	if err != nil {
		return err
	}
	return host.waitDrained(ctx, s, p, slots, f)
}

func resume(ctx context.Context, s Streams, f drainFlags, args []string) error {
	if f.reset {
		if err := reportResets(ctx, s, f, args); err != nil {
			return err
		}
	}
	p, host, err := changeDrains(ctx, s, "resume", f.all, args, func(drains []plan.Drain, slot int) []plan.Drain {
		return plan.RemoveDrain(drains, slot, plan.ByOperator)
	})
	if err != nil {
		return err
	}
	defer host.close()
	slots, err := chosenSlots(p, f.all, args)
	if err != nil {
		return err
	}
	held := false
	for _, sl := range slots {
		switch {
		case sl.User == "":
			printf(s.Out, "%s: no longer a slot, and no longer drained\n", sl.Name)
			continue
		case sl.Parked != "":
			printf(s.Out, "%s: still takes no jobs: %s\n", sl.Name, sl.Parked)
		case len(sl.Drains) > 0:
			printf(s.Out, "%s: still %s\n", sl.Name, sl.Drains[0])
		default:
			printf(s.Out, "%s: takes jobs\n", sl.Name)
			continue
		}
		held = true
	}
	if held {
		return &exitError{code: exitNo}
	}
	return nil
}

func checkReason(reason string) error {
	if n := len([]rune(reason)); n > maxDrainReason {
		return usagef("--reason has %d characters; write at most %d", n, maxDrainReason)
	}
	if !text.Plain(reason) {
		return usagef("--reason is shown in a table; write one line, without control characters")
	}
	return nil
}

// chosenSlots returns the slots of the plan that the arguments name.
func chosenSlots(p *plan.Plan, all bool, args []string) ([]plan.Slot, error) {
	switch {
	case all && len(args) > 0:
		return nil, usagef("--all means every slot; leave out %s or --all", strings.Join(args, " "))
	case all:
		return p.Slots, nil
	case len(args) == 0:
		return nil, usagef("no slot is named; write slots such as gpu3, or --all")
	}
	var chosen []plan.Slot
	for _, arg := range args {
		k, err := strconv.Atoi(strings.TrimPrefix(arg, "gpu"))
		i := slices.IndexFunc(p.Slots, func(s plan.Slot) bool { return s.Index == k })
		if err != nil || i < 0 {
			names := make([]string, len(p.Slots))
			for i, s := range p.Slots {
				names[i] = s.Name
			}
			return nil, usagef("this node has no slot %q; it has %s", arg, strings.Join(names, ", "))
		}
		chosen = append(chosen, p.Slots[i])
	}
	return chosen, nil
}

// drainHost is the machine while slots are drained.
type drainHost struct {
	*reconcile.Host
	close func()
}

// changeDrains changes which slots are drained, and then the node accordingly.
func changeDrains(ctx context.Context, s Streams, command string, all bool, args []string, change func([]plan.Drain, int) []plan.Drain) (*plan.Plan, drainHost, error) {
	none := drainHost{}
	host, closeHost, err := rootHost(ctx, s, command)
	if err != nil {
		return nil, none, err
	}
	host.Log = nil // each slot has its own line
	p, err := func() (*plan.Plan, error) {
		release, err := lock(ctx, s, host)
		if err != nil {
			return nil, err
		}
		defer release()
		m, err := readNode(ctx, s)
		if err != nil {
			return nil, err
		}
		var gone []plan.Slot // drained, but not slots of the plan; drain does not know them
		if command == "resume" {
			gone = slotless(m.plan, m.drains)
		}
		slots, err := chosenSlots(withSlots(m.plan, gone), all, args)
		if err != nil {
			return nil, err
		}
		var happened []events.Event
		drains := m.drains
		for _, sl := range slots {
			before := len(drains)
			drains = change(drains, sl.Index)
			if len(drains) != before {
				happened = append(happened, events.Event{Kind: command, Slot: sl.Index, By: plan.ByOperator, Text: drainText(command, drains, sl.Index)})
			}
		}
		if !slices.Equal(drains, m.drains) {
			if err := host.WriteDrains(drains); err != nil {
				return nil, err
			}
		}
		if err := (events.Log{File: events.Path}).Add(happened...); err != nil {
			s.warn("%v", err)
		}
		if err := m.think(); err != nil {
			return nil, err
		}
		_, err = converge(ctx, host, m.plan)
		of := map[int]bool{}
		for _, sl := range slots {
			of[sl.Index] = true
		}
		return withSlots(m.plan, gone), otherSlots(s, err, of)
	}()
	if err != nil {
		closeHost()
		return nil, none, err
	}
	return p, drainHost{host, closeHost}, nil
}

// otherSlots warns of failures in slots that were not asked for, and returns the rest of err.
func otherSlots(s Streams, err error, asked map[int]bool) error {
	var errs []error
	rest := reconcile.EachSlot(err, func(slot int, err error) {
		if asked[slot] {
			errs = append(errs, err)
		} else {
			s.warn("%v", err)
		}
	})
	return errors.Join(append(errs, rest)...)
}

// slotless returns drains without a slot in the plan as slots that have only a name.
func slotless(p *plan.Plan, drains []plan.Drain) []plan.Slot {
	var gone []plan.Slot
	for _, d := range plan.SlotlessDrains(p.Slots, drains) {
		gone = append(gone, plan.Slot{Index: d.Slot, Name: plan.SlotName(d.Slot)})
	}
	return gone
}

func withSlots(p *plan.Plan, more []plan.Slot) *plan.Plan {
	all := *p
	all.Slots = slices.Concat(p.Slots, more)
	return &all
}

func drainText(command string, drains []plan.Drain, slot int) string {
	name := plan.SlotName(slot)
	if command == "resume" {
		return name + " may take jobs again"
	}
	i := slices.IndexFunc(drains, func(d plan.Drain) bool { return d.Slot == slot && d.By == plan.ByOperator })
	return name + " is " + drains[i].String()
}

// waitDrained prints the progress of each slot, and waits for all of them if f says so.
func (h drainHost) waitDrained(ctx context.Context, s Streams, p *plan.Plan, slots []plan.Slot, f drainFlags) error {
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errTimeout)
		defer cancel()
	}
	said := map[int]string{}
	for {
		state, err := h.Observe(ctx, p)
		if err != nil {
			return errors.Join(err, h.gaveUp(ctx, said))
		}
		left := 0
		for _, sl := range slots {
			ss := state.Slot(sl.Index)
			now := "drained"
			switch busy := ss.Busy(); {
			case busy != "":
				now = "finishes " + strings.TrimSuffix(busy, " of slot "+sl.Name) + ", then takes no more"
			case ss.Agent.Running():
				now = "its agent is stopping"
			}
			if now != "drained" {
				left++
			}
			if said[sl.Index] != now {
				printf(s.Out, "%s: %s\n", sl.Name, now)
				said[sl.Index] = now
			}
		}
		if left == 0 || !f.wait {
			return nil
		}
		select {
		case <-ctx.Done():
			return h.gaveUp(ctx, said)
		case <-time.After(time.Second):
		}
	}
}

var errTimeout = errors.New("the time given is over")

// gaveUp returns what is left when the wait ends early. The slots stay drained.
func (h drainHost) gaveUp(ctx context.Context, said map[int]string) error {
	if ctx.Err() == nil {
		return nil
	}
	busy := 0
	for _, now := range said {
		if now != "drained" {
			busy++
		}
	}
	return fmt.Errorf("%w: %d %s not drained yet, and will be when their jobs are done; kbnode status shows them", context.Cause(ctx), busy, plural(busy, "slot is", "slots are"))
}

// readNode reads this node and makes its plan. It fails if anything is missing: that may be back
// in a moment, and a plan without it would remove what running jobs need.
func readNode(ctx context.Context, s Streams) (*machine, error) {
	if _, err := os.Stat(filepath.Clean(plan.BindingsPath)); errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("this machine is not set up as a node; type sudo kbnode install --queue NAME")
	}
	m := &machine{root: "/"}
	if err := m.loadConfig(&wishes{}, func(string) string { return "" }); err != nil {
		return nil, err
	}
	if err := m.read(ctx, s.logger()); err != nil {
		return nil, err
	}
	missing, err := m.missing()
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("nothing was changed: %s", strings.Join(missing, "\n"))
	}
	return m, m.think()
}

// converge changes the machine to match the plan.
func converge(ctx context.Context, host *reconcile.Host, p *plan.Plan) (reconcile.Result, error) {
	state, err := host.Observe(ctx, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	return host.Apply(ctx, p, state, reconcile.Diff(p, state))
}
