package check

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
			if same++; same == 1 {
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
	Schema int      `json:"schema"`
	Fit    bool     `json:"fit"` // nothing failed
	Checks []Result `json:"checks"`
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
