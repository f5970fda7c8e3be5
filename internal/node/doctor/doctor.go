// Package doctor checks whether a machine is fit to be a node, and says what to type if it
// is not.
//
// Checks are data: what they need, what they say, and a function that tries the thing. They
// change nothing. What several checks use, such as the inventory and the plan, is a check
// too. If one of those fails, there is still a table, with the reason in place of the
// checks that depend on it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/selftest"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Pages is where readers who have only a package find the documents.
const Pages = "https://github.com/gpu-mode/kbnode/blob/main/docs/"

// Groups are the groups of checks, in the order in which they are shown.
var Groups = []string{"node", "gpu", "docker", "slots", "agent", "buildkite", "image", "noise", "system", "selftest", "acceptance"}

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
	// Journal returns the end of a unit's log, newest last.
	Journal(ctx context.Context, unit string) ([]string, error)
	// Containers runs containers in idle slots: one that reports what it got or, unless quick, some that try
	// to escape.
	Containers(ctx context.Context, m *Machine, quick bool) ([]selftest.SlotReport, error)
	// Pull pulls the jobs' image again, and returns its digest.
	Pull(ctx context.Context) (digest string, err error)
	// Evaluate runs an evaluation in each slot, one after another or all at once.
	Evaluate(ctx context.Context, atOnce bool) ([]image.Evaluation, error)
	// Kill ends a unit's main process as a fault would.
	Kill(ctx context.Context, unit string) error
	// Docker asks the engine about itself, and Image about one of its images.
	Docker(ctx context.Context) (docker.Info, error)
	Image(ctx context.Context, ref string) (docker.Image, error)
	// Running lists the containers that run, those of jobs included.
	Running(ctx context.Context) ([]docker.Container, error)
}

// Machine is the machine being checked. The checks of group node fill in what they read;
// other checks name those in their Needs.
type Machine struct {
	host.Tree
	Source Source
	Now    time.Time
	API    API
	Slots  []int // to run the self-test in; empty means all
	// Recorded is the file that the machine was recorded in; "" for one that can be asked. Of what is not in the
	// file nothing is known.
	Recorded string

	Config    *config.Config       // config
	Inventory *inventory.Inventory // inventory
	Plan      *plan.Plan           // plan
	State     *reconcile.State     // state
	Changes   []reconcile.Change   // state: what differs from the plan
	Docker    *docker.Info         // docker-engine
	Account   *agent.Account       // agent-token-accepted
	Images    image.State          // image-state
}

// API is Buildkite's REST API.
type API struct {
	Token string // "" if none is given
	URL   string // "" means Buildkite's own
}

// lacks reports whether the machine has GPUs, but none of a vendor.
func (m *Machine) lacks(vendor string) bool {
	if m.Inventory == nil {
		return false
	}
	nvidia, amd := m.Inventory.NVIDIA != nil, m.Inventory.AMD != nil
	return vendor == "nvidia" && amd && !nvidia || vendor == "amd" && nvidia && !amd
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

// isNew says what a slot that has not begun yet waits for, such as the job of a slot whose CPUs it gets. "" if it has begun, or
// waits for nothing.
func (m *Machine) isNew(k int) (why string) {
	if m.State.Slot(k).Agent.Exists() {
		return ""
	}
	for _, c := range m.Changes {
		if c.Slot == k && c.Deferred != "" {
			return c.Deferred
		}
	}
	return ""
}

func found(all ...Finding) Answer { return Answer{Findings: all} }

// foundOr returns the findings in wrong, or else well.
func foundOr(wrong []Finding, well Finding) Answer {
	if len(wrong) > 0 {
		return found(wrong...)
	}
	return found(well)
}

// eachSlot asks about each slot. It leaves out findings without a detail, and merges those
// that differ only in their slots.
func (m *Machine) eachSlot(ask func(plan.Slot) Finding) (all []Finding) {
	for _, s := range m.Plan.Slots {
		if f := ask(s); f.Detail != "" {
			all = append(all, f.Of(s.Index))
		}
	}
	return together(all)
}

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

// together merges findings that differ only in their slots.
func together(all []Finding) (out []Finding) {
	for _, f := range all {
		i := slices.IndexFunc(out, func(o Finding) bool {
			return o.Status == f.Status && o.Detail == f.Detail && o.Fix == f.Fix && o.Advice == f.Advice && len(o.Slots) > 0 && len(f.Slots) > 0
		})
		if i < 0 {
			out = append(out, f)
		} else {
			out[i].Slots = slices.Concat(out[i].Slots, f.Slots)
		}
	}
	return out
}

// older reports whether a version is before another, which has only numbers.
func older(version, than string) bool {
	return slices.Compare(numbers(version), numbers(than)) < 0
}

// numbers returns the numbers of a version, such as 28, 5 and 2 of "28.5.2".
func numbers(version string) (list []int) {
	for n := range strings.FieldsFuncSeq(version, func(r rune) bool { return r < '0' || r > '9' }) {
		i, _ := strconv.Atoi(n)
		list = append(list, i)
	}
	return list
}

// gib formats a size for people.
func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// lines joins the lines of an error.
func lines(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// planned returns the planned content of a file, or "" if the plan has no such file.
func (m *Machine) planned(name string) string {
	i := slices.IndexFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == name })
	if i < 0 {
		return ""
	}
	return m.Plan.Files[i].Content
}

// cause returns err without the path or URL, which the finding already names.
func cause(err error) string {
	if u, is := errors.AsType[*url.Error](err); is {
		err = u.Err
	}
	if p, is := errors.AsType[*fs.PathError](err); is {
		err = p.Err
	}
	return lines(err)
}
