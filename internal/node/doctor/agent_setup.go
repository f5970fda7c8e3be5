package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// adviceForAnother is the advice for a missing or unusable token.
const adviceForAnother = "copy a token from Buildkite (Agents, Agent Tokens) to a file, and run sudo kbnode install --token-file FILE"

// placeholder matches what guides write in place of a token.
var placeholder = lazy.Regexp(`(?i)^(x{3,}|.*(your|insert|replace|change)[-_.]?(agent|bk|buildkite|token|me|here|this).*|.*token[-_.]here.*|token|secret|todo)$`)

// agentToken checks the token's file, and never shows its content.
func agentToken(_ context.Context, m *Machine) Answer {
	uid, _, mode := m.Owner(plan.TokenPath)
	text, err := m.Read(plan.TokenPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found(fail("%s is missing", plan.TokenPath).Advise("%s", adviceForAnother))
	case err != nil || !mode.IsRegular():
		return found(fail("%s cannot be read or is not a file", plan.TokenPath).Advise("%s", adviceForAnother))
	case uid != root() || mode&0o077 != 0:
		return found(fail("%s has user %d and mode %04o; only root may read it", plan.TokenPath, uid, mode.Perm()).
			Safely("chown root:root %[1]s && chmod 600 %[1]s", plan.TokenPath))
	}
	switch token, err := agent.ParseToken([]byte(text)); {
	case err != nil:
		return found(fail("%s: %s", plan.TokenPath, err).Advise("%s", adviceForAnother))
	case placeholder().MatchString(token):
		return found(fail("%s contains a placeholder instead of a token", plan.TokenPath).Advise("%s", adviceForAnother))
	}
	return found(ok("mode 0600"))
}

// agentHooks checks the operator's own hooks, which run around each job. The check as-planned covers the rest
// of their directory.
func agentHooks(_ context.Context, m *Machine) Answer {
	hooks := 0
	for _, name := range plan.OperatorHooks {
		file := path.Join(plan.HooksDir, name)
		there, err := bootstrap.CheckHook(m.Path(file), root())
		if err != nil {
			return found(fail("hook %s, so the slots run no job: %s", name, cause(err)).
				Safely("chown -R root:root %[1]s && chmod -R go-w %[1]s", plan.HooksDir).Advise("or remove %s", file))
		}
		if there {
			hooks++
		}
	}
	return found(ok("%d of the operator", hooks))
}

// root returns the user who owns the machine's files: root, or the user who runs a test.
func root() int { return os.Geteuid() }

// unitSettings are the settings that an agent's service must not lose, and the consequence.
var unitSettings = []struct{ key, why string }{
	{"Restart", "an agent that Buildkite disconnects does not start again"},
	{"KillMode", "stopping it ends jobs or leaves their processes behind"},
	{"TimeoutStopSec", "stopping it kills jobs that take longer"},
	{"Slice", "its agent runs outside the slot's limits"},
	{"User", "its agent runs as another user"},
	{"NoNewPrivileges", "its agent can become root"},
	{"ProtectSystem", "its agent can write outside its slot"},
	{"ProtectHome", "its agent reaches what others keep at home"},
}

// agentUnits looks for operators' drop-ins, which change settings without changing any file of kbnode.
func agentUnits(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		unit := plan.AgentUnit(s.Index)
		planned := m.planned(plan.UnitDir + "/" + unit)
		dropIns := slices.Concat(m.List(plan.UnitDir+"/"+unit+".d/*.conf"), m.List("/run/systemd/system/"+unit+".d/*.conf"))
		for _, name := range dropIns {
			content, _ := m.Read(name)
			for _, set := range unitSettings {
				want, have := unitValue(planned, set.key), unitValue(content, set.key)
				if have == "" || have == want || set.key == "TimeoutStopSec" && seconds(have) >= seconds(want) {
					continue
				}
				all = append(all, fail("%s is %.80q instead of %s: %s; set in %s", set.key, have, want, set.why, name).Of(s.Index).
					By(`sed -i '/^[[:space:]]*%s[[:space:]]*=/d' %s && systemctl daemon-reload`, set.key, text.ShellWord(name)))
			}
		}
	}
	return foundOr(all, ok("no drop-in changes them"))
}

// unitValue returns the last value of a setting in a unit file, or "".
func unitValue(text, key string) (value string) {
	for line := range strings.Lines(text) {
		if k, v, is := strings.Cut(line, "="); is && strings.TrimSpace(k) == key {
			value = strings.TrimSpace(v)
		}
	}
	return value
}

// timeUnits are systemd's units of time, as systemd.time(7) has them, in seconds. A number without one is in seconds.
var timeUnits = []struct {
	names   string
	seconds float64
}{
	{"|s|sec|second|seconds|", 1}, {"|ms|msec|", 1e-3}, {"|us|usec|μs|", 1e-6}, {"|m|min|minute|minutes|", 60}, {"|h|hr|hour|hours|", 3600},
	{"|d|day|days|", 86400}, {"|w|week|weeks|", 7 * 86400}, {"|M|month|months|", 30.44 * 86400}, {"|y|year|years|", 365.25 * 86400},
}

var timePart = lazy.Regexp(`([0-9.]+)\s*(\pL*)`)

// seconds returns how long systemd waits; 0 if the text is no time.
func seconds(text string) (sum float64) {
	if text == "infinity" || text == "0" {
		return math.Inf(1)
	}
	for _, part := range timePart().FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(part[1], 64)
		for _, unit := range timeUnits {
			if strings.Contains(unit.names, "|"+part[2]+"|") || part[2] == "" && unit.seconds == 1 {
				sum += n * unit.seconds
			}
		}
	}
	return sum
}

// otherAgents looks for other agents, as services and as processes outside of the slots. A
// job of such an agent has all GPUs and CPUs.
func otherAgents(_ context.Context, m *Machine) Answer {
	var all []Finding
	var services []string
	for _, link := range m.List(plan.UnitDir + "/*.wants/buildkite-agent*.service") {
		name := path.Base(link)
		if _, ours := plan.OwnsUnit(name); !ours && !slices.Contains(services, name) {
			services = append(services, name)
			all = append(all, fail("%s starts at boot; its jobs get all GPUs and CPUs", name).By("systemctl disable --now %s", text.ShellWord(name)))
		}
	}
	for _, pid := range m.agents() {
		group := m.Cgroup(pid)
		unit := path.Base(group)
		switch {
		case group == "" || strings.HasPrefix(group, "/"+plan.ParentSlice+"/") || slices.Contains(services, unit):
		case strings.HasSuffix(unit, ".service"):
			services = append(services, unit)
			all = append(all, fail("%s runs; its jobs get all GPUs and CPUs", text.Line(unit, 200)).By("systemctl disable --now %s", text.ShellWord(unit)))
		default:
			all = append(all, fail("a buildkite-agent runs outside the slots: process %d in %.200q", pid, group).
				Advise("run systemctl status %d to see what started it, and end it when its job is done", pid))
		}
	}
	if m.Exists(plan.BindingsPath) {
		all = append(all, leftByScripts(m)...)
	}
	return foundOr(all, ok("none"))
}

// oldUsers are the users of agents that kbnode did not set up: of the agent's packages, and of setup scripts.
var oldUsers = []string{"buildkite-agent", "buildkite"}

// leftByScripts looks for what remains of an earlier setup on a node, which install leaves alone.
func leftByScripts(m *Machine) (all []Finding) {
	groups, _ := m.Groups()
	for _, g := range groups {
		for _, user := range oldUsers {
			if slices.Contains(g.Members, user) && slices.Contains(powerful, g.Name) {
				all = append(all, warn("user %s of an earlier setup is in group %s, which is as good as root", user, g.Name).By("gpasswd -d %s %s", user, g.Name))
			}
		}
	}
	dirs := append(m.List("/var/lib/buildkite-agent/builds-gpu[0-9]*"), m.List("/var/lib/buildkite/builds-gpu[0-9]*")...)
	if len(dirs) > 0 {
		for i, dir := range dirs {
			dirs[i] = text.ShellWord(dir)
		}
		all = append(all, warn("checkouts of an earlier setup are left: %s", strings.Join(dirs, ", ")).
			Advise("when no job of that setup runs anymore, type sudo rm -rf %s", strings.Join(dirs, " ")))
	}
	return all
}

// agents returns the processes of agents. Others, including kbnode, only run the program to get its version.
func (m *Machine) agents() []int {
	return slices.DeleteFunc(m.PIDs(), func(pid int) bool {
		return m.Value(fmt.Sprintf("/proc/%d/comm", pid)) != "buildkite-agent" || !slices.Contains(m.Args(pid), "start")
	})
}

func agentBinary(_ context.Context, m *Machine) Answer {
	a := m.Inventory.Software.Agent
	installed := m.Exists(plan.BindingsPath)
	if a.Path == "" {
		if !installed {
			return found(ok("not installed yet; kbnode install downloads %s", plan.PinnedAgentVersion))
		}
		return found(fail("buildkite-agent is missing").By("kbnode install"))
	}
	if why := m.problem("buildkite-agent"); why != "" {
		f := fail("%s does not run: %s", a.Path, why)
		switch _, _, mode := m.TargetOwner(a.Path); {
		case mode != 0 && mode.IsRegular() && mode&0o100 == 0:
			f = fail("%s is not executable", a.Path).Safely("chmod 755 %s", a.Path)
		case a.Path == installer.AgentPath:
			f = f.By("rm %s && kbnode install", a.Path)
		default:
			f = f.Advise("put buildkite-agent %s for this machine (%s) there", plan.PinnedAgentVersion, m.Inventory.Arch)
		}
		return found(f)
	}
	for _, s := range m.Plan.Slots {
		if v := s.AgentVersion; installed && v != "" && !m.Exists(plan.AgentBinary(v)) {
			return found(fail("buildkite-agent %s, which slots run, is missing", v).By("kbnode upgrade --agent-version %s", v))
		}
	}
	return found(ok("%s", a.Path))
}

func agentVersion(_ context.Context, m *Machine) Answer {
	if m.Inventory.Software.Agent.Path == "" {
		return none("no agent is installed")
	}
	return found(m.eachSlot(func(s plan.Slot) Finding {
		v := cmp.Or(s.AgentVersion, m.Inventory.Software.Agent.Version)
		if len(numbers(v)) < 3 || !older(v, "5") {
			return warn("buildkite-agent %s is too new: kbnode supports 3 and 4", v).Advise("upgrade kbnode; " + Pages + "operations.md says how")
		}
		what, bad := m.agentSupport(v)
		switch {
		case !bad:
			return ok("%s", what)
		case m.Config.Agent.Binary != "":
			return warn("%s", what).Advise("replace %s (agent.binary in %s); slots switch to it when they are idle", m.Config.Agent.Binary, plan.ConfigPath)
		case !plan.AgentOlder(v, plan.PinnedAgentVersion):
			return warn("%s", what).Advise("upgrade kbnode, which installs a newer one, or type sudo kbnode upgrade --agent-version with a version of https://buildkite.com/docs/agent/self-hosted/versions-directory")
		}
		return warn("%s", what).By("kbnode upgrade --agent-version %s", plan.PinnedAgentVersion)
	})...)
}

// agentSupport says what is to know about a version of the agent, and whether it should be replaced.
func (m *Machine) agentSupport(v string) (what string, bad bool) {
	support, what := plan.SupportOfAgent(v), "buildkite-agent "+v
	if support.Ends.IsZero() { // it is newer than this kbnode
		return v, false
	}
	ends := support.Ends.Format(time.DateOnly)
	switch {
	case !m.Now.Before(support.Ends):
		return what + " is not supported by Buildkite since " + ends, true
	case !m.Now.Before(support.Warns):
		return what + " is supported by Buildkite only until " + ends, true
	case !config.Polls(m.Config.Agent.Endpoint) && !plan.AgentStreams(m.Config.Agent.Endpoint, v):
		return what + " asks for jobs every few seconds; newer ones are sent them at once", true
	}
	return v + ", supported by Buildkite until " + ends, false
}
