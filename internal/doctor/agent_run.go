package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// pingTime is the time limit of a ping of a guard's socket.
const pingTime = 5 * time.Second

// agentsRunning checks what kbnode status shows, and adds the agent's last words.
func agentsRunning(ctx context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		ss := m.State.Slot(s.Index)
		unit := plan.AgentUnit(s.Index)
		if !s.Serves() || len(ss.Parked) > 0 {
			continue // agent-drained or slot-parked says why
		}
		a := ss.Agent
		up := m.Now.Sub(a.Since)
		var f Finding
		switch {
		case !a.Exists():
			f = fail("%s is missing", unit).safely("kbnode reconcile")
		case a.Load == "masked":
			f = fail("%s is masked", unit).safely("systemctl unmask %s && kbnode reconcile", unit)
		case a.Active == "failed" || a.Failing():
			f = fail("the agent keeps failing (%s, exit status %d): %s", a.Result, a.ExitStatus, m.lastWords(ctx, unit)).
				advise("fix what it says; it then starts by itself. journalctl -u %s shows more", unit)
		case a.Active == "activating":
			f = warn("the agent is starting").advise("try again in a minute: kbnode doctor --only agent-running")
		case a.Stopping():
			f = ok("stops when its job is done")
		case a.Active != "active":
			f = fail("the agent is %s", a.Active).safely("systemctl start %s", unit)
		case ss.Job != nil:
			f = ok("runs a job")
		case ss.Registered:
			f = ok("registered")
		case up < slot.RegisterTime:
			f = warn("the agent has been running for %s and has not registered yet", up.Round(time.Second)).advise("try again in a minute: kbnode doctor --only agent-running")
		default:
			f = fail("the agent runs but has not registered: %s", m.lastWords(ctx, unit)).
				by("systemctl restart %s", unit).advise("if that does not help, journalctl -u %s shows why", unit)
		}
		all = append(all, f.of(s.Index))
	}
	if len(all) == 0 {
		return none("no slot is serving")
	}
	return Answer{Findings: together(all)}
}

// lastWords returns the log lines that tell why an agent gave up.
func (m *Machine) lastWords(ctx context.Context, unit string) string {
	log, err := m.Source.Journal(ctx, unit)
	if err != nil {
		return "its journal cannot be read"
	}
	return fmt.Sprintf("%.300s", cmp.Or(agent.LastWords(log), "it logged nothing"))
}

// drained lists the slots that take no jobs because an operator drained them, or because
// the guard found something that it cannot clear. The check health reports health verdicts.
func drained(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		for _, d := range s.Drains {
			if d.By == plan.ByOperator {
				all = append(all, warn("%s (since %s)", d, day(d.Since)).of(s.Index).advise("sudo kbnode resume %s returns it to service", s.Name))
			}
		}
	}
	if len(all) == 0 {
		all = found(ok("%d slots", len(m.Plan.Slots))).Findings
	}
	return Answer{Findings: together(all)}
}

// guards pings each slot's Docker socket, all at once.
func guards(ctx context.Context, m *Machine) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(fail("%s", lines(err)).advise("see /etc/passwd"))
	}
	all := make([]Finding, len(m.Plan.Slots))
	var asked sync.WaitGroup
	for i, s := range m.Plan.Slots {
		if s.Parked != "" {
			all[i] = skip("the slot is parked").of(s.Index)
			continue
		}
		asked.Go(func() { all[i] = oneGuard(ctx, m, s, users[s.User].GID).of(s.Index) })
	}
	asked.Wait()
	return Answer{Findings: together(all)}
}

func oneGuard(ctx context.Context, m *Machine, s plan.Slot, gid int) Finding {
	unit, socket := plan.GuardUnit(s.Index), plan.SocketPath(s.Index)
	g := m.State.Units[unit]
	uid, group, mode := owner(m.path(socket))
	restart := func(f Finding) Finding { return f.by("systemctl restart %s", unit) }
	switch {
	case g.Active == "failed" || g.Sub == "auto-restart":
		return fail("the guard keeps failing (%s, exit status %d): %s", g.Result, g.ExitStatus, m.lastWords(ctx, unit)).advise("see journalctl -u %s", unit)
	case !g.Running():
		return fail("the guard does not run").safely("systemctl start %s", unit)
	case uid < 0:
		return restart(fail("its guard runs, but %s is missing", socket))
	case mode.Type() != fs.ModeSocket:
		return fail("%s is not a socket", socket).by("rm -r %s && systemctl restart %s", socket, unit)
	case uid != root() || group != gid || mode.Perm() != 0o660:
		return fail("%s has user %d, group %d, mode %04o; it must have user root, group %d, mode 0660", socket, uid, group, mode.Perm(), gid).
			safely("chown 0:%d %s && chmod 660 %s", gid, socket, socket)
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.path(socket))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guard/_ping", nil)
	if err != nil {
		return fail("%s", err).advise("report it")
	}
	resp, err := client.Do(req)
	if err != nil {
		return restart(fail("%s does not answer: %s", socket, because(err)))
	}
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		return ok("answers")
	case m.Inventory.Software.Docker.Version == "":
		return skip("Docker does not answer")
	}
	return fail("%s says %s", socket, resp.Status).advise("see journalctl -u %s, and check that Docker answers: docker version", unit)
}
