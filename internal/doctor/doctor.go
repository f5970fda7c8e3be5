// Package doctor asks whether a machine is fit to be a node, and what to type
// where it is not.
//
// Checks are data: what they need, what they say, and a function that tries the
// thing. They change nothing. What several of them look at, such as the inventory
// and the plan, are checks too, so that a machine on which one of those cannot be
// had still gets a table, with the reason in place of what could not be looked at.
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
)

// Pages is where the documents are for a reader who has only a package.
const Pages = "https://github.com/gpu-mode/kbnode/blob/main/docs/"

// Status is what came of a check.
type Status int

// The statuses, in order.
const (
	OK   Status = iota
	Skip        // not looked at; the detail says why
	Warn        // the node works; somebody should look
	Fail        // the node is not fit
)

var statuses = []string{"ok", "skip", "warn", "fail"}

func (s Status) String() string { return statuses[s] }

// MarshalText writes a status as its name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name of a status.
func (s *Status) UnmarshalText(text []byte) error {
	i := slices.Index(statuses, string(text))
	if i < 0 {
		return fmt.Errorf("read report: unknown status %.20q", text)
	}
	*s = Status(i)
	return nil
}

// Finding is one thing that a check saw.
type Finding struct {
	Status Status `json:"status"`
	Slots  []int  `json:"slots,omitempty"` // those it is about; none for the node
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`    // a command line for a root shell that mends it
	Advice string `json:"advice,omitempty"` // what to do where no command does it
	// Safe says that the command ends no job, of the Slots at least while they are
	// idle, and can be taken back: --fix may run it.
	Safe bool `json:"safe,omitempty"`
}

// Check is one question about a machine.
type Check struct {
	ID    string   // stable, such as "docker-cgroup-driver"; a heading of docs/doctor.md
	Group string   // one of Groups
	About string   // a sentence: what is so where nothing is wrong
	Needs []string // IDs of checks without which it cannot be asked
	Worst Status   // the worst that it may say: Warn or Fail
	// Vendor is whose GPUs it is about, "nvidia" or "amd"; "" is anybody's. Where a
	// machine has another's and none of this one's, there is no such question.
	Vendor string
	// Bare says that it can be asked of a machine before kbnode install.
	Bare bool
	// Slow says that it runs containers.
	Slow  bool
	Limit time.Duration // 0 is ten seconds
	// Run asks. It may not write to the machine; what it has read for others it
	// hands over in Answer.Keep.
	Run func(context.Context, *Machine) Answer
}

// Answer is what a check found. No finding at all means that its question does
// not arise on this machine, and Detail says why.
type Answer struct {
	Findings []Finding
	Detail   string         // of a check that has nothing to say
	Keep     func(*Machine) // called before those that need the check run
}

// Groups are the groups of checks, in the order in which they are shown.
var Groups = []string{"node", "gpu", "docker", "slots", "agent", "buildkite", "image", "hardware", "noise", "system"}

// Source reads the machine, each part with its own deadline in ctx.
type Source interface {
	// Config reads the configuration file, and fills in what it leaves out.
	Config() (*config.Config, error)
	// Inventory reads the machine, and Plan makes a plan of the two.
	Inventory(ctx context.Context) (*inventory.Inventory, error)
	Plan() (*plan.Plan, error)
	// Observe reads what the plan says something about.
	Observe(ctx context.Context) (*reconcile.State, error)
	// Units lists the units of systemd that match a pattern.
	Units(ctx context.Context, pattern string) ([]reconcile.UnitState, error)
	// Properties reads settings of a unit as they are in force. kind is "Unit", or
	// "Service" for what only services have.
	Properties(ctx context.Context, unit, kind string, names ...string) (map[string]any, error)
	// Journal is the end of what a unit logged, newest last.
	Journal(ctx context.Context, unit string) ([]string, error)
	// Program runs a program as a service of systemd's, as the user and below the
	// limits that it names.
	Program(ctx context.Context, p reconcile.Program) ([]byte, error)
	// Containers runs a container in each idle slot and says what it was given.
	Containers(ctx context.Context, m *Machine) ([]selftest.SlotReport, error)
	// Docker asks the engine what it is, and Image for one of its images.
	Docker(ctx context.Context) (docker.Info, error)
	Image(ctx context.Context, ref string) (docker.Image, error)
}

// Machine is what is looked at. The checks of group node fill in what they read;
// others name those in their Needs.
type Machine struct {
	Root   string // "/", or a directory that holds a machine's tree
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
	Token string // "" where none is given
	URL   string // "" is Buildkite's own
}

// Result is what came of one check.
type Result struct {
	ID       string        `json:"id"`
	Group    string        `json:"group"`
	About    string        `json:"about"`
	Status   Status        `json:"status"` // the worst of the findings
	Detail   string        `json:"detail,omitempty"`
	Findings []Finding     `json:"findings"`
	Took     time.Duration `json:"took_ns"`
}

// Summary is the worst finding, and how many others are like it.
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

// Count is how many checks came to a status.
func (r *Report) Count(s Status) (n int) {
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// path is where a file of the machine is.
func (m *Machine) path(name string) string { return filepath.Join(m.Root, name) }

// maxFile bounds a file that a check reads, in bytes.
const maxFile = 1 << 20

// read reads a small file of the machine.
func (m *Machine) read(name string) (string, error) {
	f, err := os.Open(m.path(name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(text), err
}

// unit reads one unit of systemd. One that does not exist is no error.
func (m *Machine) unit(ctx context.Context, name string) (reconcile.UnitState, error) {
	units, err := m.Source.Units(ctx, name)
	if err != nil || len(units) == 0 {
		return reconcile.UnitState{Name: name, Load: "not-found"}, err
	}
	return units[0], nil
}

// problem is why the inventory could not read a subject; "" if it could.
func (m *Machine) problem(subject string) string {
	for _, p := range m.Inventory.Problems {
		if p.Subject == subject {
			return p.Detail
		}
	}
	return ""
}

func found(all ...Finding) Answer { return Answer{Findings: all} }

// none is the answer where the question does not arise.
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

// by names the command that mends it.
func (f Finding) by(format string, args ...any) Finding {
	f.Fix = fmt.Sprintf(format, args...)
	return f
}

// safely names the command that mends it, which --fix may run.
func (f Finding) safely(format string, args ...any) Finding {
	f.Safe = true
	return f.by(format, args...)
}

// advise says what to do where no command does it.
func (f Finding) advise(format string, args ...any) Finding {
	f.Advice = fmt.Sprintf(format, args...)
	return f
}

// of names the slots that it is about.
func (f Finding) of(slots ...int) Finding {
	f.Slots = slots
	return f
}

// worst is the status of all findings together. Where some were skipped and the
// others are well, it is well.
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
