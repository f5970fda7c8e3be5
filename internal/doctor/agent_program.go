package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
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
		return found(warn("%s", lines(err)).advise("see why systemd does not answer: journalctl -b -u dbus"))
	}
	var all []Finding
	served := map[string]bool{} // by cgroup
	for _, u := range units {
		if _, ours := plan.OwnsUnit(u.Name); ours || !u.Running() {
			continue
		}
		served[u.Cgroup] = true
		all = append(all, fail("%s runs; its jobs get all GPUs and CPUs", u.Name).by("systemctl disable --now %s", u.Name))
	}
	for _, name := range atBoot(m) {
		if !slices.ContainsFunc(all, func(f Finding) bool { return strings.HasSuffix(f.Fix, " "+name) }) {
			all = append(all, fail("%s is stopped, but starts at the next boot", name).safely("systemctl disable %s", name))
		}
	}
	names, _ := filepath.Glob(m.path("/proc/[0-9]*/comm")) // the pattern is well formed
	for _, name := range names {
		pid := path.Base(path.Dir(name))
		// Skip processes that have ended in the meantime.
		if comm, _ := m.read("/proc/" + pid + "/comm"); strings.TrimSpace(comm) != "buildkite-agent" {
			continue
		}
		// Others, including kbnode, only run it to get its version.
		if words, _ := m.read("/proc/" + pid + "/cmdline"); !strings.Contains(words, "\x00start\x00") {
			continue
		}
		cgroup, err := m.read("/proc/" + pid + "/cgroup")
		_, at, _ := strings.Cut(strings.TrimSpace(cgroup), "::")
		if err != nil || strings.HasPrefix(at, "/"+plan.ParentSlice+"/") || underAny(at, served) {
			continue
		}
		all = append(all, fail("a buildkite-agent runs outside the slots: process %s in %.200q", pid, at).
			advise("run systemctl status %s to see what started it, and end it when its job is done", pid))
	}
	if len(all) == 0 {
		all = found(ok("none")).Findings
	}
	return Answer{Findings: all}
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
func atBoot(m *Machine) []string {
	links, _ := filepath.Glob(m.path(plan.UnitDir + "/*.wants/buildkite-agent*.service")) // the pattern is well formed
	var names []string
	for _, l := range links {
		if _, ours := plan.OwnsUnit(filepath.Base(l)); !ours && unitName().MatchString(filepath.Base(l)) {
			names = append(names, filepath.Base(l))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unitName matches names that a shell needs no quotes for.
var unitName = lazy.Regexp(`^[A-Za-z0-9@._-]+$`)

func agentBinary(_ context.Context, m *Machine) Answer {
	a := m.Inventory.Software.Agent
	_, err := os.Stat(m.path(plan.BindingsPath))
	installed := err == nil
	if a.Path == "" {
		if !installed {
			return found(ok("not installed yet; kbnode install downloads %s", plan.PinnedAgentVersion))
		}
		return found(fail("buildkite-agent is missing").by("kbnode install"))
	}
	if why := m.problem("buildkite-agent"); why != "" {
		f := fail("%s does not run: %s", a.Path, why)
		info, err := os.Stat(m.path(a.Path))
		switch {
		case err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o100 == 0:
			f = fail("%s is not executable", a.Path).safely("chmod 755 %s", a.Path)
		case a.Path == installer.AgentPath:
			f = f.by("rm %s && kbnode install", a.Path)
		default:
			f = f.advise("put buildkite-agent %s for this machine (%s) there", plan.PinnedAgentVersion, m.Inventory.Arch)
		}
		return found(f)
	}
	for _, s := range m.Plan.Slots {
		if v := s.AgentVersion; installed && v != "" {
			if _, err := os.Stat(m.path(plan.AgentBinary(v))); errors.Is(err, fs.ErrNotExist) {
				return found(fail("buildkite-agent %s, which slots run, is missing", v).by("kbnode upgrade --agent-version %s", v))
			}
		}
	}
	return found(ok("%s", a.Path))
}

// agentVersions returns the slots by the version of their agent.
func agentVersions(m *Machine) map[string][]int {
	slots := map[string][]int{}
	for _, s := range m.Plan.Slots {
		v := cmp.Or(s.AgentVersion, m.Inventory.Software.Agent.Version)
		slots[v] = append(slots[v], s.Index)
	}
	return slots
}

func agentVersion(_ context.Context, m *Machine) Answer {
	if m.Inventory.Software.Agent.Path == "" {
		return none("no agent is installed")
	}
	var all []Finding
	for v, slots := range agentVersions(m) {
		switch {
		case !olderThan(v, "5.0.0"):
			all = append(all, warn("buildkite-agent %s is too new: kbnode supports 3 and 4", v).of(slots...).advise("upgrade kbnode; "+Pages+"operations.md says how"))
		case !olderThan(v, plan.PinnedAgentVersion):
			all = append(all, ok("%s", v).of(slots...))
		case m.Config.Agent.Binary != "":
			all = append(all, warn("buildkite-agent %s is older than %s", v, plan.PinnedAgentVersion).of(slots...).
				advise("replace %s (agent.binary in %s); slots switch to it when they are idle", m.Config.Agent.Binary, plan.ConfigPath))
		default:
			all = append(all, warn("buildkite-agent %s is older than %s", v, plan.PinnedAgentVersion).of(slots...).
				by("kbnode upgrade --agent-version %s", plan.PinnedAgentVersion))
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return slices.Compare(a.Slots, b.Slots) })
	return Answer{Findings: all}
}

// olderThan compares versions by their three numbers.
func olderThan(v, than string) bool {
	var a, b [3]int
	if n, _ := fmt.Sscanf(v, "%d.%d.%d", &a[0], &a[1], &a[2]); n < 3 {
		return false
	}
	_, _ = fmt.Sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2])
	return slices.Compare(a[:], b[:]) < 0
}
