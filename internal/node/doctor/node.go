package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// readTime limits the reading of a machine, which takes as long as the deadlines of a hung
// driver or engine. All of doctor must end within a minute.
const readTime = 45 * time.Second

func nodeConfig(_ context.Context, m *Machine) Answer {
	cfg, err := m.Source.Config()
	if err != nil {
		return found(fail("%s", lines(err)).Advise("correct the file; " + Pages + "configuration.md has every key"))
	}
	text := plan.ConfigPath
	if _, err := os.Stat(m.Path(text)); errors.Is(err, fs.ErrNotExist) && m.Exists(plan.BindingsPath) {
		return found(fail("%s is missing, so the node is not planned anymore", text).Advise("put it back, or run sudo kbnode install with the flags of this node"))
	} else if err != nil {
		text = "no file, so the defaults apply"
	}
	return Answer{Findings: []Finding{ok("%s", text)}, Keep: func(m *Machine) { m.Config = cfg }}
}

func nodeInventory(ctx context.Context, m *Machine) Answer {
	inv, err := m.Source.Inventory(ctx)
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see what sudo kbnode inventory says"))
	}
	return Answer{
		Findings: []Finding{ok("%s, %s, %d CPUs, %d GPUs", inv.OS.PrettyName, inv.Kernel, len(inv.CPU.List), len(inv.GPUs))},
		Keep:     func(m *Machine) { m.Inventory = inv },
	}
}

const planAdvice = "see " + Pages + "configuration.md for the keys that choose queues, GPUs, CPUs and memory"

func nodePlan(_ context.Context, m *Machine) Answer {
	p, err := m.Source.Plan()
	if err != nil {
		return found(fail("%s", lines(err)).Advise("%s", planAdvice))
	}
	all := []Finding{ok("%d slots", len(p.Slots))}
	for _, w := range p.Warnings {
		parked := slices.ContainsFunc(p.Slots, func(s plan.Slot) bool { return s.Parked != "" && w == s.ParkedWarning() })
		if !parked && !m.ofHooks(w) { // slot-parked and slot-hooks report it
			all = append(all, warn("%s", w).Advise("%s", planAdvice))
		}
	}
	return Answer{Findings: all, Keep: func(m *Machine) { m.Plan = p }}
}

func nodeInstalled(_ context.Context, m *Machine) Answer {
	if _, err := os.Stat(m.Path(plan.BindingsPath)); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return found(fail("%s", err).Advise("check why %s cannot be read", plan.BindingsPath))
		}
		if m.Recorded != "" {
			return none("the file has no %s, so it may be of a node or not", plan.BindingsPath)
		}
		return found(fail("kbnode install has not run here").Advise("sudo kbnode doctor --preflight says what is missing; then run sudo kbnode install"))
	}
	return found(ok("%s", plan.BindingsPath))
}

func nodeState(ctx context.Context, m *Machine) Answer {
	s, err := m.Source.Observe(ctx)
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see sudo journalctl -b -u dbus -u systemd-logind, and reboot if systemd does not answer"))
	}
	p := m.Plan
	all := []Finding{ok("%d units", len(s.Units))}
	for _, w := range s.Warnings {
		page := "operations.md"
		if strings.HasPrefix(w, "/") { // a setting of the kernel
			page = `configuration.md under "Where it does not work"`
		}
		all = append(all, warn("%s", w).Advise("see %s%s", Pages, page))
	}
	return Answer{Findings: all, Keep: func(m *Machine) { m.State, m.Changes = s, reconcile.Diff(p, s) }}
}

func nodeDaemon(_ context.Context, m *Machine) Answer {
	u := m.State.Units[plan.NodeService]
	switch {
	case u.Active == "failed" || u.Sub == "auto-restart":
		return found(fail("it keeps failing (%s, exit status %d)", u.Result, u.ExitStatus).Safely("systemctl restart %s", plan.NodeService))
	case !u.Running():
		return found(fail("it is %s", u.Active).Safely("systemctl start %s", plan.NodeService))
	case !u.Enabled:
		return found(warn("it runs, but will not start after a reboot").Safely("systemctl enable %s", plan.NodeService))
	}
	return found(ok("since %s", u.Since.UTC().Format(time.RFC3339)))
}

func nodeHealth(_ context.Context, m *Machine) Answer {
	stored, err := daemon.ReadHealth(m.Root)
	if err != nil {
		return found(warn("%s", err).By("systemctl restart %s", plan.NodeService))
	}
	var all []Finding
	for _, v := range stored.Verdicts {
		if v.Level >= health.Warn && !isOwn(m, v) {
			all = append(all, verdictFinding(v))
		}
	}
	return foundOr(all, ok("no verdicts"))
}

// nodeMetrics looks at what node_exporter reads.
func nodeMetrics(_ context.Context, m *Machine) Answer {
	dir := m.Config.Metrics.Textfile
	if dir == "" {
		return none("metrics.textfile is not set")
	}
	if err := textfile.Check(m.Root, dir, m.State.Units[plan.NodeService].Since, m.Now); err != nil {
		now, do, _ := strings.Cut(err.Error(), "; ")
		return found(warn("%s", now).Advise("%s", do))
	}
	return found(ok("%s", filepath.Join(dir, textfile.Name)))
}

func asPlanned(_ context.Context, m *Machine) Answer {
	if m.problem("docker") != "" { // reconcile refuses, too
		return none("the plan is incomplete while Docker does not answer")
	}
	all := m.drift(func(c reconcile.Change) bool {
		// slot-limits reports limits; daemon, agent-running and agent-socket what is stopped.
		return !m.ofLimits(c) && (c.Kind != reconcile.Start || strings.HasSuffix(c.Subject, ".slice"))
	})
	return foundOr(all, ok("%d files, %d units", len(m.Plan.Files), len(m.Plan.Units)))
}

// drift returns the chosen differences from the plan.
func (m *Machine) drift(choose func(reconcile.Change) bool) (all []Finding) {
	for _, c := range m.Changes {
		if !choose(c) {
			continue
		}
		f := fail("%s", c).Safely("kbnode reconcile")
		switch {
		case c.Deferred != "":
			f = warn("%s", c).Advise("it is then done automatically")
		case c.Kind == reconcile.Partition: // without it, others may use the slots' CPUs
			f.Status = Warn
		}
		if c.Slot >= 0 {
			f = f.Of(c.Slot)
		}
		all = append(all, f)
	}
	return all
}
