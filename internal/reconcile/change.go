package reconcile

import (
	"fmt"
	"strings"
)

// Kind is what a change does.
type Kind string

// The kinds of change. A Subject that ends in "/" is a directory.
const (
	Create    Kind = "create"  // a file or directory
	Update    Kind = "update"  // a file of ours
	Adopt     Kind = "adopt"   // a file of somebody else: keep a backup, then write ours or remove it
	Chmod     Kind = "chmod"   // mode or owner
	Delete    Kind = "delete"  // a file or directory of ours
	Restore   Kind = "restore" // what was adopted, from its backup
	AddUser   Kind = "adduser"
	DelUser   Kind = "deluser"
	DelNet    Kind = "delnet"    // a slot's network, from the Docker engine
	Protect   Kind = "protect"   // write the firewall rules between slots
	Unprotect Kind = "unprotect" // take them away
	Reload    Kind = "reload"    // systemd's unit files
	Start     Kind = "start"
	Stop      Kind = "stop"
	Restart   Kind = "restart"
	Drain     Kind = "drain"     // stop after the current job; nobody waits for it
	Set       Kind = "set"       // the limits of a slice that runs
	Partition Kind = "partition" // keep everything else off the CPUs of a slice
	Enable    Kind = "enable"
	Disable   Kind = "disable"
	Tune      Kind = "tune"   // make settings of the running machine
	Untune    Kind = "untune" // put them back
)

// Change is one difference between a machine and its plan.
type Change struct {
	Kind    Kind   `json:"kind"`
	Subject string `json:"subject"` // a path, unit, user or network
	Slot    int    `json:"slot"`    // -1 for the node's own
	Diff    string `json:"diff,omitempty"`
	Why     string `json:"why,omitempty"`
	// Deferred says what the change waits for; "" when it can be made now.
	Deferred string `json:"deferred,omitempty"`

	phase  phase
	fault  error   // why it cannot be made
	inert  bool    // harmless to a running job
	agreed bool    // to an Adopt, earlier
	text   string  // content of an Adopt that no plan has
	away   bool    // an Adopt that only removes
	keep   bool    // a Chmod that keeps a backup of mode and owner
	owner  bool    // a Chmod of which only the owner differs
	mode   bool    // a Chmod that leaves the owner as it is
	tuned  []tuned // of a Tune or Untune
}

// phase orders the changes of different subjects.
type phase int

const (
	// What kbnode started in slots that take no jobs goes first: whatever comes
	// after may fail. The busy ones are asked before others are waited for.
	phaseParkBusy phase = iota
	phasePark
	phaseRetire // stop and disable what no plan has
	phaseUntune
	phaseDelete
	phaseWrite
	phaseEnable // before the reload: to systemd its units are out of date after it
	phaseReload
	phaseDrain
	phaseStop
	phaseHooks // what agents of an earlier setup read: they have stopped, or finish their last job
	phaseSlice
	phaseTune
	phaseStart
)

// files says that a change is of files and directories, and of users.
func (c Change) files() bool {
	return c.phase == phaseDelete || c.phase == phaseWrite || c.phase == phaseHooks
}

func (c Change) String() string {
	s := string(c.Kind) + " " + c.Subject
	if c.Why != "" {
		s += " (" + c.Why + ")"
	}
	if c.Deferred != "" {
		s += ", " + c.Deferred
	}
	return s
}

// Conflicts are the files that Apply refuses to touch unless Host.Adopt is
// set: those that kbnode did not write and that no earlier run adopted.
func Conflicts(changes []Change) []string {
	var paths []string
	for _, c := range changes {
		if c.Kind == Adopt && !c.agreed {
			paths = append(paths, c.Subject)
		}
	}
	return paths
}

// ConflictError is a refusal to replace files that kbnode did not write.
type ConflictError struct{ Paths []string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: not written by kbnode; move it away, or use --adopt to replace it and keep a backup until uninstall",
		strings.Join(e.Paths, ", "))
}

// diffContext is how many unchanged lines a diff shows around a change.
const diffContext = 2

// lineDiff shows how a text changes, as one block: the lines between the first
// and the last that differ.
func lineDiff(old, text string) string {
	a, b := lines(old), lines(text)
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	from, to := max(0, head-diffContext), min(tail, diffContext)
	var out strings.Builder
	fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(from, len(a)-tail+to), span(from, len(b)-tail+to))
	write := func(sign string, ls []string) {
		for _, l := range ls {
			out.WriteString(sign + l + "\n")
		}
	}
	write(" ", a[from:head])
	write("-", a[head:len(a)-tail])
	write("+", b[head:len(b)-tail])
	write(" ", a[len(a)-tail:len(a)-tail+to])
	return out.String()
}

// span is a range of lines as unified diffs have it.
func span(from, to int) string {
	if from == to {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
