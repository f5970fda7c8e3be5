package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// backTime is how long a killed agent may stay away.
const backTime = 10 * time.Second

const useCompatible = "print pipelines with --profile compatible"

// Acceptance is what a vendor shows the operators before a node goes live; docs/install.md describes its JSON.
type Acceptance struct {
	Node     string    `json:"node"`
	Kbnode   string    `json:"kbnode"` // its version
	Queues   []string  `json:"queues"`
	GPUs     []string  `json:"gpus"` // "gpu0: NVIDIA B200, GPU-…"
	Image    string    `json:"image"`
	Time     time.Time `json:"time"` // when the run began
	Accepted bool      `json:"accepted"`
	Untried  []string  `json:"untried"` // checks that must not be skipped, and were
	*Report
}

// Accept judges the report of all groups. A node whose checks could not be read has no plan.
func Accept(m *Machine, r *Report, version string) Acceptance {
	a := Acceptance{Kbnode: version, Time: m.Now.UTC().Truncate(time.Second), Report: r, Queues: []string{}, GPUs: []string{}, Untried: []string{}}
	if m.Config != nil {
		a.Image = m.Config.Image.Name
	}
	if m.Plan != nil {
		a.Node = m.Plan.Node
		for _, s := range m.Plan.Slots {
			a.Queues = append(a.Queues, s.Queue)
			for _, g := range s.GPUs {
				a.GPUs = append(a.GPUs, s.Name+": "+g.Model+", "+g.UUID)
			}
		}
		slices.Sort(a.Queues)
		a.Queues = slices.Compact(a.Queues)
	}
	for _, c := range r.Checks {
		must := c.Group == "selftest" || c.Group == "acceptance" || c.ID == "container" || c.ID == "agent-running"
		if must && (c.Status == Skip || slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Status == Skip })) {
			a.Untried = append(a.Untried, c.ID)
		}
	}
	a.Accepted = r.Fit && len(a.Untried) == 0
	return a
}

func acceptImage(ctx context.Context, m *Machine) Answer {
	digest, err := m.Source.Pull(ctx)
	switch {
	case errors.Is(err, image.ErrNoRegistry):
		return found(ok("it was made or loaded here"))
	case errors.Is(err, image.ErrUnrecorded):
		return found(warn("%s", lines(err)).By(updateImage))
	case err != nil:
		return found(fail("%s", lines(err)).By(updateImage))
	}
	return found(ok("%s", digest))
}

// evaluations evaluates in the slots, one after another or all at once.
func evaluations(atOnce bool) func(context.Context, *Machine) Answer {
	return func(ctx context.Context, m *Machine) Answer {
		all, err := m.Source.Evaluate(ctx, atOnce)
		if err != nil {
			return found(fail("%s", lines(err)).Advise("see sudo kbnode image list"))
		}
		return Answer{Findings: m.evaluated(all), Detail: "there is no slot"}
	}
}

func (m *Machine) evaluated(all []image.Evaluation) (findings []Finding) {
	kinds := map[string][]string{} // by the slot's shape
	for _, e := range all {
		var f Finding
		var s plan.Slot
		if i := slices.IndexFunc(m.Plan.Slots, func(s plan.Slot) bool { return s.Index == e.Index }); i >= 0 {
			s = m.Plan.Slots[i]
		}
		switch {
		case e.Missed != "":
			f = skip("%s", e.Missed)
		case !e.Passed:
			f = fail("%s", e.Reason).Advise("see sudo kbnode doctor --only slots,image")
		case !e.Uploadable:
			f = fail("there is no result.json that the agent can upload").Advise("see sudo kbnode doctor --only slots,image")
		case len(s.GPUs) == 0 && e.NotStrict == "":
			f = ok("passed in profile %s, in a slot without a GPU", e.Profile)
		case len(s.GPUs) == 0:
			f = warn("passed only in profile %s: %s", e.Profile, e.NotStrict).Advise(useCompatible)
		case e.Torch == "":
			f = warn("passed in profile %s, but the image has no torch that uses GPUs", e.Profile).Advise("set image.name to the jobs' image")
		case e.GPU == "":
			f = fail("torch saw no GPU").Advise("see sudo kbnode doctor --only gpu,docker")
		case e.NotStrict != "":
			f = warn("passed only in profile %s, on %s, torch %s: %s", e.Profile, e.GPU, e.Torch, e.NotStrict).Advise(useCompatible)
		default:
			f = ok("passed in profile %s, on %s, torch %s", e.Profile, e.GPU, e.Torch)
		}
		if kind := e.GPU + ", torch " + e.Torch; e.Torch != "" && e.GPU != "" && !slices.Contains(kinds[s.Shape], kind) {
			kinds[s.Shape] = append(kinds[s.Shape], kind)
		}
		findings = append(findings, f.Of(e.Index))
	}
	for _, shape := range slices.Sorted(maps.Keys(kinds)) {
		if alike := kinds[shape]; len(alike) > 1 {
			slices.Sort(alike)
			findings = append(findings, fail("the slots of shape %s differ: %s", shape, strings.Join(alike, "; ")).Advise("see sudo kbnode inventory"))
		}
	}
	return together(findings)
}

// agentRestart kills the agent of an idle slot, and waits for the next one.
func agentRestart(ctx context.Context, m *Machine) Answer {
	state, err := m.Source.Observe(ctx)
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see sudo kbnode status"))
	}
	i := slices.IndexFunc(m.Plan.Slots, func(s plan.Slot) bool {
		ss := state.Slot(s.Index)
		return s.Serves() && ss.Busy() == "" && ss.Agent.Active == "active" && ss.Agent.MainPID != 0
	})
	if i < 0 {
		return found(skip("no slot is idle"))
	}
	s := m.Plan.Slots[i]
	wrong := func(format string, args ...any) Answer {
		return found(fail(format, args...).Of(s.Index).Advise("see sudo journalctl -u %s", plan.AgentUnit(s.Index)))
	}
	before := state.Slot(s.Index).Agent.MainPID
	if err := m.Source.Kill(ctx, plan.AgentUnit(s.Index)); err != nil {
		return wrong("%s", lines(err))
	}
	back, began := time.Duration(0), time.Now()
	for since := time.Duration(0); since <= slot.RegisterTime; since = time.Since(began) {
		state, err := m.Source.Observe(ctx)
		if err == nil {
			now := state.Slot(s.Index)
			// systemd may still report the killed agent.
			if another := now.Agent.Active == "active" && now.Agent.MainPID != 0 && now.Agent.MainPID != before; another && back == 0 {
				back = max(since, 1)
			}
			if back > 0 && (now.Registered || now.Job != nil) {
				return restarted(s, back, since)
			}
		}
		if back == 0 && since > backTime {
			return wrong("the agent is not back after %s", backTime)
		}
		if limit.Sleep(ctx, 100*time.Millisecond) != nil {
			return Answer{Detail: "interrupted"}
		}
	}
	return wrong("the agent was back after %.1f s, but has not registered", back.Seconds())
}

func restarted(s plan.Slot, back, registered time.Duration) Answer {
	detail := fmt.Sprintf("back after %.1f s, registered after %.1f s", back.Seconds(), registered.Seconds())
	if back > backTime {
		return found(fail("%s", detail).Of(s.Index).Advise("see sudo journalctl -u %s", plan.AgentUnit(s.Index)))
	}
	return found(ok("%s", detail).Of(s.Index))
}
