package reconcile

import (
	"fmt"
	"strings"
)

// Kind is what a change does.
type Kind string

// The kinds of change. A Subject that ends in "/" is a directory.
const (
	Create    Kind = "create" // a file or directory
	Update    Kind = "update" // a file that kbnode wrote
	Adopt     Kind = "adopt"  // someone else's file: back it up, then replace or remove it
	Chmod     Kind = "chmod"  // mode or owner
	Delete    Kind = "delete" // a file or directory that kbnode made
	AddUser   Kind = "adduser"
	DelUser   Kind = "deluser"
	DelNet    Kind = "delnet"    // a slot's network, from the Docker engine
	Protect   Kind = "protect"   // write the firewall rules between slots
	Unprotect Kind = "unprotect" // remove them
	Reload    Kind = "reload"    // systemd's unit files
	Start     Kind = "start"
	Stop      Kind = "stop"
	Restart   Kind = "restart"
	Drain     Kind = "drain"     // stop after the current job, without waiting for it
	Set       Kind = "set"       // the limits of a running slice
	Partition Kind = "partition" // keep everything else off the CPUs of a slice
	Enable    Kind = "enable"
	Disable   Kind = "disable"
	Tune      Kind = "tune"   // change settings of the running machine
	Untune    Kind = "untune" // restore them
)

// Change is one difference between a machine and its plan.
type Change struct {
	Kind    Kind   `json:"kind"`
	Subject string `json:"subject"` // a path, unit, user or network
	Slot    int    `json:"slot"`    // -1 for the node
	Diff    string `json:"diff,omitempty"`
	Why     string `json:"why,omitempty"`
	// Deferred is what the change waits for; "" if it can be made now.
	Deferred string `json:"deferred,omitempty"`

	phase phase
	fault error   // why it cannot be made
	inert bool    // harmless to a running job
	text  string  // content for an Adopt of an unplanned file
	away  bool    // an Adopt that only removes
	owner bool    // a Chmod in which only the owner differs
	mode  bool    // a Chmod that does not change the owner
	tuned []tuned // for Tune and Untune
}

// phase orders changes to different subjects.
type phase int

const (
	// What runs in slots that take no jobs is stopped first: anything after that may
	// fail. Agents with jobs are asked to stop before kbnode waits for the others.
	phaseParkBusy phase = iota
	phasePark
	phaseRetire // stop and disable unplanned units
	phaseUntune
	phaseDelete
	phaseWrite
	phaseEnable // before the reload, because systemd then considers its units out of date
	phaseReload
	phaseDrain
	phaseStop
	phaseHooks // what agents of an earlier setup read, once they have stopped or are on their last job
	phaseSlice
	phaseTune
	phaseStart
)

// files reports whether a change is to files, directories or users.
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

// Conflicts returns the files that Apply refuses to touch unless Host.Adopt is set: those
// that kbnode did not write.
func Conflicts(changes []Change) []string {
	var paths []string
	for _, c := range changes {
		if c.Kind == Adopt {
			paths = append(paths, c.Subject)
		}
	}
	return paths
}

// ConflictError is a refusal to replace files that kbnode did not write.
type ConflictError struct{ Paths []string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: not written by kbnode; move it away, or use --adopt to replace it and keep a backup",
		strings.Join(e.Paths, ", "))
}

// diffContext is how many unchanged lines a diff shows around a change.
const diffContext = 2

// lineDiff shows how a text changes, as one block from the first to the last line that
// differs.
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

// span formats a range of lines as in a unified diff.
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
