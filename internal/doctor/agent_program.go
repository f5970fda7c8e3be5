package doctor

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// otherAgents looks for other agents, as services and as processes outside of the slots. A
// job of such an agent has all GPUs and CPUs.
func otherAgents(ctx context.Context, m *Machine) Answer {
	units, err := m.Source.Units(ctx, "buildkite-agent*.service")
	if err != nil {
		return found(warn("%s", lines(err)).Advise("see why systemd does not answer: sudo journalctl -b -u dbus"))
	}
	var all []Finding
	served := map[string]bool{} // by cgroup
	for _, u := range units {
		if _, ours := plan.OwnsUnit(u.Name); ours || !u.Running() {
			continue
		}
		served[u.Cgroup] = true
		all = append(all, fail("%s runs; its jobs get all GPUs and CPUs", u.Name).By("systemctl disable --now %s", u.Name))
	}
	for _, name := range atBoot(m) {
		if !slices.ContainsFunc(all, func(f Finding) bool { return strings.HasSuffix(f.Fix, " "+name) }) {
			all = append(all, fail("%s is stopped, but starts at the next boot", name).Safely("systemctl disable %s", name))
		}
	}
	for _, pid := range m.PIDs() {
		proc := fmt.Sprintf("/proc/%d", pid)
		// Others, including kbnode, only run it to get its version.
		if m.Value(proc+"/comm") != "buildkite-agent" || !slices.Contains(m.Args(pid), "start") {
			continue
		}
		cgroup, err := m.Read(proc + "/cgroup")
		_, at, _ := strings.Cut(strings.TrimSpace(cgroup), "::")
		if err != nil || strings.HasPrefix(at, "/"+plan.ParentSlice+"/") || underAny(at, served) {
			continue
		}
		all = append(all, fail("a buildkite-agent runs outside the slots: process %d in %.200q", pid, at).
			Advise("run systemctl status %d to see what started it, and end it when its job is done", pid))
	}
	return otherwise(all, ok("none"))
}

func underAny(at string, cgroups map[string]bool) bool {
	for c := range cgroups {
		if c != "" && (at == c || strings.HasPrefix(at, c+"/")) {
			return true
		}
	}
	return false
}

// atBoot returns the services of other agents that a systemd target starts.
func atBoot(m *Machine) (names []string) {
	for _, link := range m.List(plan.UnitDir + "/*.wants/buildkite-agent*.service") {
		name := path.Base(link)
		if _, ours := plan.OwnsUnit(name); !ours && unitName().MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unitName matches names that a shell needs no quotes for.
var unitName = lazy.Regexp(`^[A-Za-z0-9@._-]+$`)

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
		if v := s.AgentVersion; installed && v != "" {
			if !m.Exists(plan.AgentBinary(v)) {
				return found(fail("buildkite-agent %s, which slots run, is missing", v).By("kbnode upgrade --agent-version %s", v))
			}
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
		switch {
		case len(numbers(v)) < 3, !older(v, "5"):
			return warn("buildkite-agent %s is too new: kbnode supports 3 and 4", v).Advise("upgrade kbnode; " + Pages + "operations.md says how")
		case !older(v, plan.PinnedAgentVersion):
		case m.Config.Agent.Binary != "":
			return warn("buildkite-agent %s is older than %s", v, plan.PinnedAgentVersion).
				Advise("replace %s (agent.binary in %s); slots switch to it when they are idle", m.Config.Agent.Binary, plan.ConfigPath)
		default:
			return warn("buildkite-agent %s is older than %s", v, plan.PinnedAgentVersion).By("kbnode upgrade --agent-version %s", plan.PinnedAgentVersion)
		}
		return ok("%s", v)
	})...)
}
