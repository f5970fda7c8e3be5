package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

// pingTime is how long a guard may take to say whether a job could start.
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
		case !a.Exists():
			return fail("%s is missing", unit).Safely("kbnode reconcile")
		case a.Load == "masked":
			return fail("%s is masked", unit).Safely("systemctl unmask %s && kbnode reconcile", unit)
		case a.Active == "failed" || a.Failing():
			return fail("the agent keeps failing (%s, exit status %d): %s", a.Result, a.ExitStatus, m.lastWords(ctx, unit)).
				Advise("fix what it says; it then starts by itself. sudo journalctl -u %s shows more", unit)
		case a.Active == "activating":
			return warn("the agent is starting").Advise("try again in a minute: sudo kbnode doctor --only agent-running")
		case a.Stopping():
			return ok("stops when its job is done")
		case a.Active != "active":
			return fail("the agent is %s", a.Active).Safely("systemctl start %s", unit)
		case ss.Job != nil:
			return ok("runs a job")
		case ss.Registered:
			return ok("registered")
		case up < slot.RegisterTime:
			return warn("the agent has been running for %s and has not registered yet", up.Round(time.Second)).Advise("try again in a minute: sudo kbnode doctor --only agent-running")
		}
		return fail("the agent runs but has not registered: %s", m.lastWords(ctx, unit)).
			By("systemctl restart %s", unit).Advise("if that does not help, sudo journalctl -u %s shows why", unit)
	})
	if len(all) == 0 {
		return none("no slot is serving")
	}
	return found(all...)
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
			if d.By == plan.ByOperator {
				all = append(all, warn("%s (since %s)", d, day(d.Since)).Of(s.Index).Advise("sudo kbnode resume %s returns it to service", s.Name))
			}
		}
	}
	return otherwise(together(all), ok("%d slots", len(m.Plan.Slots)))
}

// guards asks each slot's service, all at once.
func guards(ctx context.Context, m *Machine) Answer {
	all := make([]Finding, len(m.Plan.Slots))
	var asked sync.WaitGroup
	for i, s := range m.Plan.Slots {
		asked.Go(func() { all[i] = oneGuard(ctx, m, s).Of(s.Index) })
	}
	asked.Wait()
	return found(together(all)...)
}

func oneGuard(ctx context.Context, m *Machine, s plan.Slot) Finding {
	unit, socket := plan.GuardUnit(s.Index), plan.SocketPath(s.Index)
	switch g := m.State.Units[unit]; {
	case s.Parked != "":
		return skip("the slot is parked")
	case g.Active == "failed" || g.Sub == "auto-restart":
		return fail("the guard keeps failing (%s, exit status %d): %s", g.Result, g.ExitStatus, m.lastWords(ctx, unit)).Advise("see sudo journalctl -u %s", unit)
	case !g.Running():
		return fail("the guard does not run").Safely("systemctl start %s", unit)
	}
	if _, _, mode := m.Owner(socket); mode.Perm()&0o007 != 0 {
		return fail("%s has mode %04o, so any user of this machine may run jobs", socket, mode.Perm()).Safely("chmod 660 %s", socket)
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guard"+slot.CheckPath, nil)
	if err != nil {
		return fail("%s", err).Advise("report it")
	}
	client := slot.Client(m.Path(socket))
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return fail("%s does not answer: %s", socket, because(err)).By("systemctl restart %s", unit)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return ok("answers")
	case m.Inventory.Software.Docker.Version == "":
		return skip("Docker does not answer")
	}
	return fail("no job can start: %s", text.Line(slot.Message(resp), 300)).Advise("see sudo journalctl -u %s, and check that Docker answers: sudo docker version", unit)
}
