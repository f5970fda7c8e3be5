package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// marks are the signs and colors of the kinds of changes.
var marks = map[reconcile.Kind]struct {
	sign string
	c    text.Color
}{
	reconcile.Create: {"+", text.FgGreen}, reconcile.AddUser: {"+", text.FgGreen}, reconcile.Start: {"+", text.FgGreen}, reconcile.Enable: {"+", text.FgGreen}, reconcile.Protect: {"+", text.FgGreen},
	reconcile.Delete: {"-", text.FgRed}, reconcile.DelUser: {"-", text.FgRed}, reconcile.DelNet: {"-", text.FgRed}, reconcile.Unprotect: {"-", text.FgRed}, reconcile.Stop: {"-", text.FgRed}, reconcile.Disable: {"-", text.FgRed}, reconcile.Drain: {"-", text.FgRed},
}

// printChanges prints changes. On a terminal, changes that are the same for several slots are
// one line, with the slots as in a shell: buildkite-gpu{0..7}.slice.
func printChanges(w io.Writer, changes []reconcile.Change) {
	if _, ok := terminal(w); ok {
		changes = foldSlots(changes)
	}
	for _, c := range changes {
		printChange(w, c)
	}
}

func printDryRun(w io.Writer, changes []reconcile.Change) {
	printChanges(w, changes)
	printf(w, "%s would be made; nothing was changed\n", changeCount(len(changes)))
}

// printLater prints the deferred changes. If several changes of a slot wait for the same thing,
// they are one line.
func printLater(w io.Writer, deferred []reconcile.Change) {
	type wait struct {
		slot int
		why  string
	}
	n := map[wait]int{}
	for _, c := range deferred {
		n[wait{c.Slot, c.Deferred}]++
	}
	for _, c := range deferred {
		switch k := (wait{c.Slot, c.Deferred}); {
		case n[k] == 1 || n[k] > 0 && c.Slot < 0:
			printf(w, "  later: %s\n", c)
		case n[k] > 0:
			printf(w, "  later: %s of %s, %s\n", changeCount(n[k]), plan.SlotName(c.Slot), c.Deferred)
			n[k] = 0
		}
	}
}

// printSlotsAffected prints which slots are removed, and which keep what they have until a job is done:
// what a person wants to know when a node changes shape.
func printSlotsAffected(w io.Writer, p *plan.Plan, changes []reconcile.Change) {
	var reasons []string
	slots := map[string][]int{} // that wait, by why
	var removed []int
	for _, c := range changes {
		if c.Slot < 0 {
			continue
		}
		if !slices.ContainsFunc(p.Slots, func(s plan.Slot) bool { return s.Index == c.Slot }) {
			removed = append(removed, c.Slot)
		}
		if c.Deferred != "" {
			if slots[c.Deferred] == nil {
				reasons = append(reasons, c.Deferred)
			}
			slots[c.Deferred] = append(slots[c.Deferred], c.Slot)
		}
	}
	if len(removed) > 0 || len(reasons) > 0 {
		printf(w, "\n")
	}
	if len(removed) > 0 {
		printf(w, "Slots to be removed: %s\n", namesOf(removed))
	}
	for _, why := range reasons {
		printf(w, "Later: %s, %s\n", namesOf(slots[why]), why)
	}
}

// namesOf returns the names of slots, each once.
func namesOf(slots []int) string {
	slices.Sort(slots)
	var names []string
	for _, k := range slices.Compact(slots) {
		names = append(names, plan.SlotName(k))
	}
	return strings.Join(names, ", ")
}

// maxDiffLines limits the lines of one file's diff on a terminal: no one reads the bindings of
// 64 slots.
const maxDiffLines = 20

// foldSlots merges changes that differ only in the slot's number, at the place of the first.
func foldSlots(changes []reconcile.Change) []reconcile.Change {
	slots := map[string][]int{} // by the change without numbers
	keys := make([]reconcile.Change, len(changes))
	for i, c := range changes {
		k := reconcile.Change{Kind: c.Kind, Subject: withoutSlot(c.Subject, c.Slot), Why: withoutSlot(c.Why, c.Slot), Deferred: withoutSlot(c.Deferred, c.Slot)}
		if showsDiff(c.Kind) {
			k.Diff = withoutSlot(c.Diff, c.Slot)
		}
		keys[i] = k
		key := k.String() + k.Diff
		slots[key] = append(slots[key], c.Slot)
	}
	var out []reconcile.Change
	for i, c := range changes {
		k := keys[i]
		key := k.String() + k.Diff
		switch all := slots[key]; {
		case len(all) == 0:
			continue // merged into an earlier change
		case len(all) > 1 && strings.Contains(k.Subject, slotHole):
			in := func(s string) string { return strings.ReplaceAll(s, slotHole, braces(all)) }
			c.Subject, c.Why, c.Deferred, c.Diff = in(k.Subject), in(k.Why), in(k.Deferred), in(k.Diff)
			slots[key] = nil
		}
		out = append(out, c)
	}
	return out
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
	slices.Sort(slots)
	if first, last := slots[0], slots[len(slots)-1]; last-first == len(slots)-1 {
		return fmt.Sprintf("{%d..%d}", first, last)
	}
	return "{" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(slots)), ","), "[]") + "}"
}

func printChange(w io.Writer, c reconcile.Change) {
	m, ok := marks[c.Kind]
	if !ok {
		m.sign, m.c = "~", text.FgYellow
	}
	line := fmt.Sprintf("%s %-9s %s%s%s", paint(w, m.c, m.sign), c.Kind, c.Subject, suffix(": ", c.Why), suffix("; ", c.Deferred))
	if width, ok := terminal(w); ok {
		line = fold(line, "", width, len("+ partition "))
	}
	printf(w, "%s\n", line)
	// A new file's content is the plan itself; a change is worth reading.
	if showsDiff(c.Kind) && c.Diff != "" {
		lines := strings.Split(strings.TrimRight(c.Diff, "\n"), "\n")
		more := 0
		if _, ok := terminal(w); ok && len(lines) > maxDiffLines+1 {
			lines, more = lines[:maxDiffLines], len(lines)-maxDiffLines
		}
		for _, line := range lines {
			printf(w, "    %s\n", line)
		}
		if more > 0 {
			printf(w, "    … %d more lines; --json shows them\n", more)
		}
	}
}

func showsDiff(k reconcile.Kind) bool {
	return k == reconcile.Update || k == reconcile.Adopt || k == reconcile.Tune || k == reconcile.Untune
}
