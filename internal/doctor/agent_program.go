package doctor

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

// otherAgents looks for other agents, as services and as processes outside of the slots. A
// job of such an agent has all GPUs and CPUs.
func otherAgents(_ context.Context, m *Machine) Answer {
	var all []Finding
	var services []string
	for _, link := range m.List(plan.UnitDir + "/*.wants/buildkite-agent*.service") {
		name := path.Base(link)
		if _, ours := plan.OwnsUnit(name); !ours && !slices.Contains(services, name) {
			services = append(services, name)
			all = append(all, fail("%s starts at boot; its jobs get all GPUs and CPUs", name).By("systemctl disable --now %s", word(name)))
		}
	}
	for _, pid := range m.agents() {
		_, group, _ := strings.Cut(m.Value(fmt.Sprintf("/proc/%d/cgroup", pid)), "::")
		unit := path.Base(group)
		switch {
		case group == "" || strings.HasPrefix(group, "/"+plan.ParentSlice+"/") || slices.Contains(services, unit):
		case strings.HasSuffix(unit, ".service"):
			services = append(services, unit)
			all = append(all, fail("%s runs; its jobs get all GPUs and CPUs", text.Line(unit, 200)).By("systemctl disable --now %s", word(unit)))
		default:
			all = append(all, fail("a buildkite-agent runs outside the slots: process %d in %.200q", pid, group).
				Advise("run systemctl status %d to see what started it, and end it when its job is done", pid))
		}
	}
	return otherwise(all, ok("none"))
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
