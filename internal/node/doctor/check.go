package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

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
type Check struct {
	ID    string   // stable, such as "docker-cgroup-driver"
	Group string   // the name of its group
	About string   // a sentence: what is true if nothing is wrong
	Needs []string // IDs of checks that must run first, and neither fail nor skip
	After []string // IDs of checks that must run first, whatever they find
	Worst Status   // the worst possible status: Warn or Fail
	// Vendor is whose devices the check is about, or "" for any. The report on a subject that
	// lacks them omits the check, unless Options.Only names it.
	Vendor string
	// Bare means that the check can run before kbnode install.
	Bare bool
	// Recorded means that a recorded machine answers it: it asks only the configuration, the slots and the inventory.
	Recorded bool
	// First means that, if the check fails on a bare machine, nothing else about that one is worth a look.
	First bool
	// Slow means that the check runs containers.
	Slow bool
	// Alone means that the check runs only if its name or group is given, and then after all others, one after
	// the other.
	Alone bool
	Limit time.Duration // 0 means ten seconds
	// Run runs the check. It must not write to the machine. It passes what it has read for
	// other checks to Answer.Keep.
	Run func(context.Context, *Machine) Answer
}

// Answer is what a check found. No findings means that the check does not apply to this
// machine, and Detail says why.
type Answer struct {
	Findings []Finding
	Detail   string         // why there are no findings
	Keep     func(*Machine) // called before the checks that need this one run
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

// Result is the outcome of one check.
type Result struct {
	ID       string        `json:"id"`
	Group    string        `json:"group"`
	About    string        `json:"about"`
	Status   Status        `json:"status"` // the worst of the findings
	Detail   string        `json:"detail,omitempty"`
	Findings []Finding     `json:"findings"`
	Took     time.Duration `json:"took_ns"`
}

// Summary returns the worst finding and how many others have the same status.
func (r Result) Summary() string {
	same, first := 0, ""
	for _, f := range r.Findings {
		if f.Status == r.Status {
			same++
			if same == 1 {
				first = f.Detail
			}
		}
	}
	switch {
	case same == 0:
		return r.Detail
	case same > 1:
		return fmt.Sprintf("%s (and %d more)", first, same-1)
	}
	return first
}

// Report is the outcome of a run.
type Report struct {
	Schema   int      `json:"schema"`
	Recorded string   `json:"recorded,omitempty"` // the file, if it is a recorded machine's: most checks are then skipped
	Fit      bool     `json:"fit"`                // nothing failed
	Cut      bool     `json:"cut,omitempty"`      // only what failed is here: it makes everything else pointless
	Checks   []Result `json:"checks"`
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Count returns how many checks have a status.
func (r *Report) Count(s Status) (n int) {
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// Repair is a command that fixes something and ends no job.
type Repair struct {
	Command string
	Checks  []string // whose findings it fixes
	Slots   []int    // that must be idle
}

// repairTime limits one command. Starting eight agents takes the longest.
const repairTime = 10 * time.Minute

// Repairs returns the commands that --fix may run, each once, in the order of the checks.
func (r *Report) Repairs() []Repair {
	var all []Repair
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			if f.Status <= Skip || !f.Safe {
				continue
			}
			i := slices.IndexFunc(all, func(m Repair) bool { return m.Command == f.Fix })
			if i < 0 {
				i = len(all)
				all = append(all, Repair{Command: f.Fix})
			}
			m := &all[i]
			m.Checks = append(m.Checks, c.ID)
			m.Slots = append(m.Slots, f.Slots...)
		}
	}
	for i := range all {
		all[i].Checks = slices.Compact(all[i].Checks)
		slices.Sort(all[i].Slots)
		all[i].Slots = slices.Compact(all[i].Slots)
	}
	return all
}

// Run runs the command as shown and writes its output to out.
func (m Repair) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", m.Command)
	// Neither cron nor every sudo has the directories of kbnode and modprobe in PATH.
	cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w", m.Command, err)
	}
	return nil
}
