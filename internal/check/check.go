// Package check runs checks that are data: what they need, what they say, and a function that
// tries the thing. It reports what they find, with fixes to type or to run.
//
// M is what the checks are about. It holds what a check has read for others.
package check

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Subject is what checks are about.
type Subject interface {
	// Lacks reports whether checks for a vendor do not apply, but those for another do.
	Lacks(vendor string) bool
}

// Status is the outcome of a check.
type Status int

// The statuses, in order.
const (
	OK   Status = iota
	Skip        // not checked; the detail says why
	Warn        // the node works; someone should look
	Fail        // the node is not fit
)

var statuses = []string{"ok", "skip", "warn", "fail"}

func (s Status) String() string { return statuses[s] }

// MarshalText encodes a status as its name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes the name of a status.
func (s *Status) UnmarshalText(text []byte) error {
	i := slices.Index(statuses, string(text))
	if i < 0 {
		return fmt.Errorf("read report: unknown status %.20q", text)
	}
	*s = Status(i)
	return nil
}

// Finding is one thing that a check found.
type Finding struct {
	Status Status `json:"status"`
	Slots  []int  `json:"slots,omitempty"` // affected slots; none for the node
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`    // a command line for a root shell that fixes it
	Advice string `json:"advice,omitempty"` // what to do if no command does it
	// Safe means that --fix may run the command: it can be undone, and ends no job, at
	// least while the Slots are idle.
	Safe bool `json:"safe,omitempty"`
}

// By sets the command that fixes it.
func (f Finding) By(format string, args ...any) Finding {
	f.Fix = fmt.Sprintf(format, args...)
	return f
}

// Safely sets the command that fixes it, which --fix may run.
func (f Finding) Safely(format string, args ...any) Finding {
	f.Safe = true
	return f.By(format, args...)
}

// Advise says what to do if no command fixes it.
func (f Finding) Advise(format string, args ...any) Finding {
	f.Advice = fmt.Sprintf(format, args...)
	return f
}

// Of sets the affected slots.
func (f Finding) Of(slots ...int) Finding {
	f.Slots = slots
	return f
}

// Check is one question about a machine.
type Check[M Subject] struct {
	ID    string   // stable, such as "docker-cgroup-driver"
	Group string   // the name of its group
	About string   // a sentence: what is true if nothing is wrong
	Needs []string // IDs of checks that must run first, and neither fail nor skip
	Worst Status   // the worst possible status: Warn or Fail
	// Vendor is whose devices the check is about, or "" for any. The report on a subject that
	// lacks them omits the check, unless Options.Only names it.
	Vendor string
	// Bare means that the check can run before kbnode install.
	Bare bool
	// Slow means that the check runs containers.
	Slow  bool
	Limit time.Duration // 0 means ten seconds
	// Run runs the check. It must not write to the machine. It passes what it has read for
	// other checks to Answer.Keep.
	Run func(context.Context, M) Answer[M]
}

// Answer is what a check found. No findings means that the check does not apply to this
// machine, and Detail says why.
type Answer[M Subject] struct {
	Findings []Finding
	Detail   string  // why there are no findings
	Keep     func(M) // called before the checks that need this one run
}

// worst returns the worst status of all findings. Skip counts only if all were skipped.
func worst(all []Finding) Status {
	status := Skip
	for _, f := range all {
		if status == Skip || f.Status > status && f.Status != Skip {
			status = f.Status
		}
	}
	return status
}
