package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// pingTime is how long a slot may take to say whether a job could start.
const pingTime = 5 * time.Second

// agentsRunning checks what kbnode status shows, and adds the agent's last words.
func agentsRunning(ctx context.Context, m *Machine) Answer {
	all := m.eachSlot(func(s plan.Slot) Finding {
		ss, unit := m.State.Slot(s.Index), plan.AgentUnit(s.Index)
		a := ss.Agent
		up := m.Now.Sub(a.Since)
		switch {
		case !s.Serves() || len(ss.Parked) > 0:
			return Finding{} // agent-drained or slot-parked says why
		case m.isNew(s.Index) != "":
			return warn("the slot is new, and %s", m.isNew(s.Index)).Advise("it then starts by itself")
		case !a.Exists():
			return fail("%s is missing", unit).Safely("kbnode reconcile")
		case a.Load == "masked":
			return fail("%s is masked", unit).Safely("systemctl unmask %s && kbnode reconcile", unit)
		case a.Active == "failed" || a.Failing():
			return fail("the agent keeps failing (%s, exit status %d): %s", a.Result, a.ExitStatus, m.lastWords(ctx, unit)).
				Advise("fix what it says; it then starts by itself. sudo journalctl -u %s shows more", unit)
		case a.Preparing() && up >= slot.RegisterTime:
			return fail("the agent waits for the slot to be cleared").
				Advise("see sudo kbnode logs %s, and check that Docker answers: sudo docker version", s.Name)
		case a.Active == "activating", a.Clearing():
			return warn("the agent is starting").Advise("try again in a minute: sudo kbnode doctor --only agent-running")
		case a.Stopping():
			return ok("stops when its job is done")
		case a.Active != "active":
			return fail("the agent is %s", a.Active).Safely("systemctl start --no-block %s", unit)
		case ss.Job != nil:
			return ok("runs a job")
		case ss.Registered && m.polls(ctx, s, up):
			return warn("registered, but it asks Buildkite for jobs every few seconds: no stream came up, over which they are sent at once").
				Advise("sudo kbnode doctor --only agent-endpoint says whether a proxy is in between; to poll on purpose, write agent.endpoint: %s into %s", config.PollingEndpoint, plan.ConfigPath)
		case ss.Registered:
			return ok("registered")
		case up < slot.RegisterTime:
			return warn("the agent has been running for %s and has not registered yet", up.Round(time.Second)).Advise("try again in a minute: sudo kbnode doctor --only agent-running")
		}
		return fail("the agent runs but has not registered: %s", m.lastWords(ctx, unit)).
			By("systemctl restart --no-block %s", unit).Advise("if that does not help, sudo journalctl -u %s shows why", unit)
	})
	if len(all) == 0 {
		return none("no slot is serving")
	}
	return found(all...)
}

// streamTime is more than an agent needs for its stream after it has started.
const streamTime = 30 * time.Second

// polls reports whether an agent that should have a stream from Buildkite has none. That the stream came up is all that
// the agent logs of it: one that broke later is not noticed.
func (m *Machine) polls(ctx context.Context, s plan.Slot, up time.Duration) bool {
	endpoint, version := m.Config.Agent.Endpoint, cmp.Or(s.AgentVersion, m.Inventory.Software.Agent.Version)
	if up < streamTime || !strings.HasPrefix(endpoint, "https:") || !plan.AgentStreams(endpoint, version) {
		return false
	}
	log, err := m.Source.Journal(ctx, plan.AgentUnit(s.Index))
	if err != nil {
		return false
	}
	for _, line := range slices.Backward(log) {
		switch {
		case strings.Contains(line, "Ping stream connection established"):
			return false
		case strings.Contains(line, "Successfully registered agent"):
			return true
		}
	}
	return false // the lines of the start are gone
}

// lastWords returns the log lines that tell why an agent gave up.
func (m *Machine) lastWords(ctx context.Context, unit string) string {
	log, err := m.Source.Journal(ctx, unit)
	if err != nil {
		return "its journal cannot be read"
	}
	return fmt.Sprintf("%.300s", cmp.Or(agent.LastWords(log), "it logged nothing"))
}

// drained lists the slots that take no jobs because an operator drained them. The check health
// reports health verdicts.
func drained(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		for _, d := range s.Drains {
			if d.By != plan.ByOperator {
				continue
			}
			who := s.Name
			if d.Reboot != "" {
				who = "--all"
			}
			all = append(all, warn("%s (since %s)", d, day(d.Since)).Of(s.Index).Advise("sudo kbnode resume %s returns it to service", who))
		}
	}
	return foundOr(together(all), ok("%d slots", len(m.Plan.Slots)))
}

// sockets asks each slot whether a job could start, all at once.
func sockets(ctx context.Context, m *Machine) Answer {
	all := make([]Finding, len(m.Plan.Slots))
	var asked sync.WaitGroup
	for i, s := range m.Plan.Slots {
		asked.Go(func() { all[i] = oneSocket(ctx, m, s).Of(s.Index) })
	}
	asked.Wait()
	return found(together(all)...)
}

func oneSocket(ctx context.Context, m *Machine, s plan.Slot) Finding {
	unit, socket := plan.JobSocket(s.Index), plan.SocketPath(s.Index)
	switch u := m.State.Units[unit]; {
	case s.Parked != "":
		return skip("the slot is parked")
	case m.isNew(s.Index) != "":
		return skip("the slot is new, and %s", m.isNew(s.Index))
	case u.Active == "failed":
		return fail("the slot's socket has failed: %s", m.lastWords(ctx, unit)).Safely("systemctl restart %s", unit)
	case !u.Running():
		return fail("the slot takes no jobs: systemd does not listen on its socket").Safely("systemctl start %s", unit)
	}
	if _, _, mode := m.Owner(socket); mode.Perm()&0o007 != 0 {
		return fail("%s has mode %04o, so any user of this machine may run jobs", socket, mode.Perm()).Safely("chmod 660 %s", socket)
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	err := bootstrap.Check(ctx, m.Path(socket))
	no, answered := errors.AsType[*bootstrap.NotReadyError](err)
	switch {
	case err == nil:
		return ok("answers")
	case !answered:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op
		}
		return fail("%s does not answer: %s", socket, cause(err)).By("systemctl restart %s", unit)
	case m.Inventory.Software.Docker.Version == "":
		return skip("Docker does not answer")
	case slices.ContainsFunc(m.wrongLimits(), func(f Finding) bool { return slices.Contains(f.Slots, s.Index) }):
		return skip("slot-limits says why no job can start")
	}
	return fail("no job can start: %s", text.Line(no.Reason, 300)).Advise("see sudo kbnode logs %s, and check that Docker answers: sudo docker version", s.Name)
}

// waits reports whether a slot's agent should be connected now.
func (m *Machine) waits(s plan.Slot) bool {
	ss := m.State.Slot(s.Index)
	return s.Serves() && len(ss.Parked) == 0 && ss.Registered
}

// queues uses the agents' own token, which sees the queues of its cluster.
func queues(_ context.Context, m *Machine) Answer {
	if m.Account == nil || len(m.Account.Agents.Queues) == 0 {
		return none("Buildkite shows this token no queues")
	}
	slots := map[string][]int{}
	for _, s := range m.Plan.Slots {
		if m.waits(s) {
			slots[s.Queue] = append(slots[s.Queue], s.Index)
		}
	}
	var all []Finding
	for _, q := range slices.Sorted(maps.Keys(slots)) {
		ours := slots[q]
		at, there := m.Account.Agents.Queues[q]
		switch {
		case !there:
			all = append(all, fail("the token's cluster has no queue %s, or no agent in it", q).Of(ours...).
				Advise("create it in Buildkite (Agents, the cluster, Queues, New Queue, self-hosted), or choose another with sudo kbnode install --queue NAME"))
		case at.Total < len(ours):
			all = append(all, warn("queue %s has %d agents, but %d slots use it", q, at.Total, len(ours)).Of(ours...).
				Advise("see Agents in Buildkite for the missing ones, and try again in a minute"))
		default:
			all = append(all, ok("%s: %d agents", q, at.Total).Of(ours...))
		}
	}
	if len(all) == 0 {
		return none("no slot waits for jobs")
	}
	return found(all...)
}

// connected uses the REST API, which needs a user's token.
func connected(ctx context.Context, m *Machine) Answer {
	if m.API.Token == "" {
		return none("no API token; set BUILDKITE_API_TOKEN to ask")
	}
	if m.Account == nil || m.Account.Organization.Slug == "" {
		return none("Buildkite does not report the organization")
	}
	client, err := buildkite.New(buildkite.Options{URL: m.API.URL, Token: m.API.Token})
	if err != nil {
		return found(warn("%s", lines(err)).Advise("see BUILDKITE_API_URL"))
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	list, err := client.Agents(ctx, m.Account.Organization.Slug)
	if err != nil {
		return found(warn("%s", lines(err)).Advise("the token needs scope read_agents and access to organization %s", m.Account.Organization.Slug))
	}
	all := m.eachSlot(func(s plan.Slot) Finding {
		if !m.waits(s) {
			return Finding{}
		}
		return listed(s, list)
	})
	if len(all) == 0 {
		return none("no slot waits for jobs")
	}
	return found(all...)
}

func listed(s plan.Slot, list []buildkite.Agent) Finding {
	named := slices.DeleteFunc(slices.Clone(list), func(a buildkite.Agent) bool { return a.Name != s.Agent || a.StandsIn() })
	switch {
	case len(named) == 0:
		return fail("Buildkite does not list the agent").Advise("see sudo journalctl -u %s, and run sudo systemctl restart --no-block %[1]s", plan.AgentUnit(s.Index))
	case len(named) > 1:
		var hosts []string
		for _, a := range named {
			hosts = append(hosts, fmt.Sprintf("%.60s", a.Hostname))
		}
		return warn("%d agents are named %s, on %s", len(named), s.Agent, strings.Join(hosts, ", ")).
			Advise("give this node its own name: sudo kbnode install --node NAME")
	case named[0].Paused:
		return warn("the agent is paused in Buildkite and gets no jobs: %.200s", named[0].PausedNote).Advise("resume it in Buildkite, Agents")
	case !slices.Contains(named[0].Tags, "queue="+s.Queue):
		return fail("Buildkite does not list the agent in queue %s", s.Queue).By("systemctl restart --no-block %s", plan.AgentUnit(s.Index))
	}
	return ok("connected")
}
