// Package doctor checks whether a machine is fit to be a node, and says what to type if it
// is not.
//
// Checks are data: what they need, what they say, and a function that tries the thing. They
// change nothing. What several checks use, such as the inventory and the plan, is a check
// too. If one of those fails, there is still a table, with the reason in place of the
// checks that depend on it.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Pages is where readers who have only a package find the documents.
const Pages = "https://github.com/gpu-mode/kbnode/blob/main/docs/"

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

// Check is one question about a machine.
type Check struct {
	ID    string   // stable, such as "docker-cgroup-driver"; a heading of docs/doctor.md
	Group string   // one of Groups
	About string   // a sentence: what is true if nothing is wrong
	Needs []string // IDs of checks that must run first, and neither fail nor skip
	Worst Status   // the worst possible status: Warn or Fail
	// Vendor is the vendor of the GPUs that the check is about, "nvidia" or "amd", or ""
	// for any. The report on a machine that has only the other vendor's GPUs omits the
	// check, unless Options.Only names it.
	Vendor string
	// Bare means that the check can run before kbnode install.
	Bare bool
	// Slow means that the check runs containers.
	Slow  bool
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

// Groups are the groups of checks, in the order in which they are shown.
var Groups = []string{"node", "gpu", "docker", "slots", "agent", "buildkite", "image", "hardware", "noise", "system"}

// Source reads the machine. Each part has its own deadline in ctx.
type Source interface {
	// Config reads the configuration file and fills in defaults.
	Config() (*config.Config, error)
	// Inventory reads the machine, and Plan makes a plan from it and the configuration.
	Inventory(ctx context.Context) (*inventory.Inventory, error)
	Plan() (*plan.Plan, error)
	// Observe reads the state of what the plan covers.
	Observe(ctx context.Context) (*reconcile.State, error)
	// Units lists the systemd units that match a pattern.
	Units(ctx context.Context, pattern string) ([]slot.Unit, error)
	// Properties reads settings of a unit that are in force. kind is "Unit", or "Service"
	// for settings that only services have.
	Properties(ctx context.Context, unit, kind string, names ...string) (map[string]any, error)
	// Journal returns the end of a unit's log, newest last.
	Journal(ctx context.Context, unit string) ([]string, error)
	// Program runs a program as a systemd service, with the user and limits that p names.
	Program(ctx context.Context, p reconcile.Program) ([]byte, error)
	// Containers runs a container in each idle slot and reports what it got.
	Containers(ctx context.Context, m *Machine) ([]selftest.SlotReport, error)
	// Docker asks the engine about itself, and Image about one of its images.
	Docker(ctx context.Context) (docker.Info, error)
	Image(ctx context.Context, ref string) (docker.Image, error)
}

// Machine is the machine being checked. The checks of group node fill in what they read;
// other checks name those in their Needs.
type Machine struct {
	Root   string // "/", or a directory with a machine's tree
	Source Source
	Now    time.Time
	API    API

	Config    *config.Config       // config
	Inventory *inventory.Inventory // inventory
	Plan      *plan.Plan           // plan
	State     *reconcile.State     // state
	Changes   []reconcile.Change   // state: what differs from the plan
	Docker    *docker.Info         // docker-engine
	Account   *agent.Account       // agent-token-accepted
}

// API is Buildkite's REST API.
type API struct {
	Token string // "" if none is given
	URL   string // "" means Buildkite's own
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

// path returns the path of a file of the machine below Root.
func (m *Machine) path(name string) string { return filepath.Join(m.Root, name) }

// maxFile limits a file that a check reads, in bytes.
const maxFile = 1 << 20

// read reads a file of the machine, at most maxFile bytes.
func (m *Machine) read(name string) (string, error) {
	f, err := os.Open(m.path(name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(text), err
}

// unit reads one systemd unit. A missing unit is not an error.
func (m *Machine) unit(ctx context.Context, name string) (slot.Unit, error) {
	units, err := m.Source.Units(ctx, name)
	if err != nil || len(units) == 0 {
		return slot.Unit{Name: name, Load: "not-found"}, err
	}
	return units[0], nil
}

// problem returns why the inventory could not read a subject, or "" if it could.
func (m *Machine) problem(subject string) string {
	for _, p := range m.Inventory.Problems {
		if p.Subject == subject {
			return p.Detail
		}
	}
	return ""
}

func found(all ...Finding) Answer { return Answer{Findings: all} }

// none returns the answer of a check that does not apply.
func none(format string, args ...any) Answer { return Answer{Detail: fmt.Sprintf(format, args...)} }

func ok(format string, args ...any) Finding {
	return Finding{Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func skip(format string, args ...any) Finding {
	return Finding{Status: Skip, Detail: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) Finding {
	return Finding{Status: Warn, Detail: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) Finding {
	return Finding{Status: Fail, Detail: fmt.Sprintf(format, args...)}
}

// by sets the command that fixes it.
func (f Finding) by(format string, args ...any) Finding {
	f.Fix = fmt.Sprintf(format, args...)
	return f
}

// safely sets the command that fixes it, which --fix may run.
func (f Finding) safely(format string, args ...any) Finding {
	f.Safe = true
	return f.by(format, args...)
}

// advise says what to do if no command fixes it.
func (f Finding) advise(format string, args ...any) Finding {
	f.Advice = fmt.Sprintf(format, args...)
	return f
}

// of sets the affected slots.
func (f Finding) of(slots ...int) Finding {
	f.Slots = slots
	return f
}

// worst returns the worst status of all findings. Skip counts only if all were skipped.
func worst(all []Finding) Status {
	if len(all) == 0 {
		return Skip
	}
	return slices.MaxFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a.Status), rank(b.Status)) }).Status
}

func rank(s Status) int {
	if s == Skip {
		return -1
	}
	return int(s)
}
