package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// markOf returns the sign and the color of a kind of change.
func markOf(k reconcile.Kind) (sign string, c text.Color) {
	switch k {
	case reconcile.Create, reconcile.AddUser, reconcile.Start, reconcile.Enable, reconcile.Protect:
		return "+", text.FgGreen
	case reconcile.Delete, reconcile.DelUser, reconcile.DelNet, reconcile.Unprotect, reconcile.Stop, reconcile.Disable, reconcile.Drain:
		return "-", text.FgRed
	}
	return "~", text.FgYellow
}

// printChanges prints changes. On a terminal, changes that are the same for several slots are
// one line, with the slots as in a shell: buildkite-gpu{0..7}.slice.
func printChanges(w io.Writer, changes []reconcile.Change) {
	if _, ok := term.Terminal(w); ok {
		changes = foldSlots(changes)
	}
	for _, c := range changes {
		printChange(w, c)
	}
}

func printDryRun(w io.Writer, changes []reconcile.Change) {
	printChanges(w, changes)
	term.Printf(w, "%s would be made; nothing was changed\n", changeCount(len(changes)))
}

// printLater prints the deferred changes. If several changes of a slot wait for the same thing,
// they are one line.
func printLater(w io.Writer, deferred []reconcile.Change) {
	type wait struct {
		slot int
		why  string
	}
	for _, group := range term.Grouped(deferred, func(c reconcile.Change) wait { return wait{c.Slot, c.Deferred} }) {
		if c := group[0]; c.Slot >= 0 && len(group) > 1 {
			term.Printf(w, "  later: %s of %s, %s\n", changeCount(len(group)), plan.SlotName(c.Slot), c.Deferred)
			continue
		}
		for _, c := range group {
			term.Printf(w, "  later: %s\n", c)
		}
	}
}

// printSlotsAffected prints which slots are removed, and which keep what they have until a job is done:
// what a person wants to know when a node changes shape.
func printSlotsAffected(w io.Writer, p *plan.Plan, changes []reconcile.Change) {
	var removed, deferred []reconcile.Change
	for _, c := range changes {
		if c.Slot >= 0 && !slices.ContainsFunc(p.Slots, func(s plan.Slot) bool { return s.Index == c.Slot }) {
			removed = append(removed, c)
		}
		if c.Slot >= 0 && c.Deferred != "" {
			deferred = append(deferred, c)
		}
	}
	if len(removed)+len(deferred) > 0 {
		term.Printf(w, "\n")
	}
	if len(removed) > 0 {
		term.Printf(w, "Slots to be removed: %s\n", slotNames(removed))
	}
	for _, group := range term.Grouped(deferred, func(c reconcile.Change) string { return c.Deferred }) {
		term.Printf(w, "Later: %s, %s\n", slotNames(group), group[0].Deferred)
	}
}

func slotsOf(changes []reconcile.Change) (slots []int) {
	for _, c := range changes {
		slots = append(slots, c.Slot)
	}
	slices.Sort(slots)
	return slices.Compact(slots)
}

func slotNames(changes []reconcile.Change) string {
	var names []string
	for _, k := range slotsOf(changes) {
		names = append(names, plan.SlotName(k))
	}
	return strings.Join(names, ", ")
}

// maxDiffLines limits the lines of one file's diff on a terminal: no one reads the bindings of
// 64 slots.
const maxDiffLines = 20

// foldSlots merges changes that differ only in the slot's number, at the place of the first.
func foldSlots(changes []reconcile.Change) (folded []reconcile.Change) {
	type key struct {
		kind                         reconcile.Kind
		subject, why, deferred, diff string // with a hole for the slot's number
	}
	keyOf := func(c reconcile.Change) key {
		k := key{c.Kind, withoutSlot(c.Subject, c.Slot), withoutSlot(c.Why, c.Slot), withoutSlot(c.Deferred, c.Slot), ""}
		if showsDiff(c.Kind) {
			k.diff = withoutSlot(c.Diff, c.Slot)
		}
		return k
	}
	for _, group := range term.Grouped(changes, keyOf) {
		c := group[0]
		if k := keyOf(c); len(group) > 1 && strings.Contains(k.subject, slotHole) {
			in := func(s string) string { return strings.ReplaceAll(s, slotHole, braces(slotsOf(group))) }
			c.Subject, c.Why, c.Deferred, c.Diff = in(k.subject), in(k.why), in(k.deferred), in(k.diff)
			group = []reconcile.Change{c}
		}
		folded = append(folded, group...)
	}
	return folded
}

const slotHole = "\x00" // not in any name

// numbered matches slot numbers in names: kbnode-gpu3, gpu-3/, agent-3/.
var numbered = lazy.Regexp(`(gpu-?|agent-)([0-9]+)\b`)

// withoutSlot replaces a slot's number in names with slotHole.
func withoutSlot(s string, slot int) string {
	number := strconv.Itoa(slot)
	return numbered().ReplaceAllStringFunc(s, func(name string) string {
		if part := numbered().FindStringSubmatch(name); part[2] == number {
			return part[1] + slotHole
		}
		return name
	})
}

// braces writes numbers as a brace expression of a shell.
func braces(slots []int) string {
	if first, last := slots[0], slots[len(slots)-1]; last-first == len(slots)-1 {
		return fmt.Sprintf("{%d..%d}", first, last)
	}
	return "{" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(slots)), ","), "[]") + "}"
}

func printChange(w io.Writer, c reconcile.Change) {
	sign, hue := markOf(c.Kind)
	line := fmt.Sprintf("%s %-9s %s%s%s", term.Paint(w, hue, sign), c.Kind, c.Subject, suffix(": ", c.Why), suffix("; ", c.Deferred))
	if width, ok := term.Terminal(w); ok {
		line = term.Fold(line, width, len("+ partition "))
	}
	term.Printf(w, "%s\n", line)
	// A new file's content is the plan itself; a change is worth reading.
	if showsDiff(c.Kind) && c.Diff != "" {
		lines := strings.Split(strings.TrimRight(c.Diff, "\n"), "\n")
		more := 0
		if _, ok := term.Terminal(w); ok && len(lines) > maxDiffLines+1 {
			lines, more = lines[:maxDiffLines], len(lines)-maxDiffLines
		}
		for _, line := range lines {
			term.Printf(w, "    %s\n", line)
		}
		if more > 0 {
			term.Printf(w, "    … %d more lines; --json shows them\n", more)
		}
	}
}

func showsDiff(k reconcile.Kind) bool {
	return k == reconcile.Update || k == reconcile.Adopt || k == reconcile.Tune || k == reconcile.Untune
}

// doing names the work of each kind of change, for people who wait for it.
var doing = map[reconcile.Kind]string{
	reconcile.Create: "writing files", reconcile.Update: "writing files", reconcile.Adopt: "writing files", reconcile.Chmod: "writing files",
	reconcile.Delete:  "deleting files",
	reconcile.AddUser: "adding users", reconcile.DelUser: "removing users",
	reconcile.Protect: "writing firewall rules", reconcile.Unprotect: "removing networks", reconcile.DelNet: "removing networks",
	reconcile.Reload: "reloading systemd", reconcile.Start: "starting units", reconcile.Stop: "stopping units",
	reconcile.Restart: "restarting units", reconcile.Drain: "asking agents to stop after their job",
	reconcile.Tune: "applying settings", reconcile.Untune: "restoring settings",
	reconcile.Set: "setting limits", reconcile.Partition: "setting limits",
	reconcile.Enable: "enabling units", reconcile.Disable: "disabling units",
}

// changeProgress shows changes as they are made: one line for each kind of work, on a terminal with
// the current change. plan and --dry-run print the full list.
type changeProgress struct {
	*term.Progress
	work  string
	count int
}

func (p *changeProgress) show(c reconcile.Change) {
	work := doing[c.Kind]
	if strings.HasSuffix(c.Subject, ".slice") && (c.Kind == reconcile.Start || c.Kind == reconcile.Set) {
		work = doing[reconcile.Partition] // a slice only limits
	}
	fixed := ""
	if work != p.work {
		p.end()
		p.work, p.count, fixed = work, 0, work
	}
	p.count++
	p.Show(fmt.Sprintf("%s: %d, %s", work, p.count, c.Subject), fixed)
}

// end completes the line of the finished work with its count.
func (p *changeProgress) end() {
	p.End(fmt.Sprintf("%s: %d", p.work, p.count))
	p.work = ""
}

// showProgress prints changes as they are made, instead of the log.
func showProgress(s term.Streams, host *reconcile.Host) (end func()) {
	p := &changeProgress{Progress: term.NewProgress(s)}
	host.Log = nil
	host.Progress = p.show
	return p.end
}

// warnChanges prints what did not stop changes but did not succeed.
func warnChanges(s term.Streams, result reconcile.Result) {
	for _, w := range result.Warnings {
		s.Warn("%s", w)
	}
}
