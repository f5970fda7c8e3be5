package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// unitSettings are the settings that an agent's service must not lose, and the consequence.
var unitSettings = []struct{ file, property, why string }{
	{"Restart", "Restart", "an agent that Buildkite disconnects does not start again"},
	{"KillMode", "KillMode", "stopping it ends jobs or leaves their processes behind"},
	{"TimeoutStopSec", "TimeoutStopUSec", "stopping it kills jobs that take longer"},
	{"Slice", "Slice", "its agent runs outside the slot's limits"},
	{"LoadCredential", "LoadCredential", "the agent starts without its token"},
	{"NoNewPrivileges", "NoNewPrivileges", "its agent can become root"},
	{"Environment=KBNODE_SLOT", "Environment", "its jobs get another slot's resources"},
}

// agentUnits compares the settings in force in systemd with the planned unit. Operators'
// drop-ins change them without changing any file of kbnode.
func agentUnits(ctx context.Context, m *Machine) Answer {
	var properties []string
	for _, s := range unitSettings {
		properties = append(properties, s.property)
	}
	var all []Finding
	for _, s := range m.Plan.Slots {
		unit := plan.AgentUnit(s.Index)
		if u := m.State.Units[unit]; !u.Exists() || u.NeedReload {
			all = append(all, skip("the loaded unit differs from its file; see as-planned").Of(s.Index))
			continue
		}
		got, err := m.Source.Properties(ctx, unit, "Service", properties...)
		if err != nil {
			return found(warn("%s", lines(err)).Advise("see systemctl status %s", unit))
		}
		dropIns, err := m.Source.Properties(ctx, unit, "Unit", "DropInPaths")
		if err != nil {
			return found(warn("%s", lines(err)).Advise("see systemctl status %s", unit))
		}
		files, _ := dropIns["DropInPaths"].([]string)
		text, before := m.planned(plan.UnitDir+"/"+unit), len(all)
		for _, set := range unitSettings {
			want := wanted(text, set.file)
			if have := inForce(got[set.property], set.file); want != "" && !same(set.file, want, have) {
				f := fail("%s is %.80q instead of %s: %s", strings.TrimPrefix(set.file, "Environment="), have, want, set.why)
				all = append(all, m.undo(f, unit, set.file, files).Of(s.Index))
			}
		}
		if len(all) == before {
			all = append(all, ok("%d drop-ins", len(files)).Of(s.Index))
		}
	}
	return found(together(all)...)
}

// undo adds the command that removes a setting from operators' drop-ins.
func (m *Machine) undo(f Finding, unit, key string, dropIns []string) Finding {
	var sets []string
	for _, name := range dropIns {
		text, err := m.Read(name)
		if err == nil && slices.ContainsFunc(strings.Split(text, "\n"), func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), key+"=") }) {
			sets = append(sets, word(name))
		}
	}
	if len(sets) == 0 {
		return f.Advise("see systemctl cat %s", unit)
	}
	f.Detail += "; set in " + strings.Join(sets, ", ")
	return f.By(`sed -i '/^[[:space:]]*%s=/d' %s && systemctl daemon-reload`, key, strings.Join(sets, " "))
}

// wanted returns the last value of a setting in a unit file, or "".
func wanted(text, key string) (value string) {
	for line := range strings.Lines(text) {
		if v, is := strings.CutPrefix(strings.TrimSpace(line), key+"="); is {
			value = v
		}
	}
	return value
}

// inForce formats a systemd property as a unit file would.
func inForce(v any, key string) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case uint64:
		if v == 1<<64-1 {
			return "infinity"
		}
		return strconv.FormatUint(v/uint64(time.Second/time.Microsecond), 10)
	case []string:
		_, name, _ := strings.Cut(key, "=")
		for _, kv := range slices.Backward(v) {
			if value, is := strings.CutPrefix(kv, name+"="); is {
				return value
			}
		}
		return ""
	case [][]any:
		var pairs []string
		for _, p := range v {
			pairs = append(pairs, strings.TrimSuffix(strings.ReplaceAll(fmt.Sprintln(p...), " ", ":"), "\n"))
		}
		return strings.Join(pairs, " ")
	}
	return ""
}

func same(key, want, have string) bool {
	switch key {
	case "TimeoutStopSec": // longer is fine
		w, errW := strconv.Atoi(want)
		h, errH := strconv.Atoi(have)
		return have == "infinity" || errW == nil && errH == nil && h >= w
	case "LoadCredential": // there may be more
		return slices.Contains(strings.Fields(have), want)
	}
	return want == have
}
