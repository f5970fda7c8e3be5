package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// newToken is the advice for an unusable token.
const newToken = "copy a token from Buildkite (Agents, Agent Tokens) to a file, delete " + plan.TokenPath + " if you wrote it by hand, and run sudo kbnode install --token-file FILE"

// placeholder matches what guides write in place of a token.
var placeholder = lazy.Regexp(`(?i)^(x{3,}|.*(your|insert|replace|change)[-_.]?(agent|bk|buildkite|token|me|here|this).*|.*token[-_.]here.*|token|secret|todo)$`)

// agentToken checks the token's file, and never shows its content.
func agentToken(_ context.Context, m *Machine) Answer {
	uid, _, mode := m.Owner(plan.TokenPath)
	text, err := m.Read(plan.TokenPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found(fail("%s is missing", plan.TokenPath).Advise("copy a token from Buildkite (Agents, Agent Tokens) to a file, and run sudo kbnode install --token-file FILE"))
	case err != nil || !mode.IsRegular():
		return found(fail("%s cannot be read or is not a file", plan.TokenPath).Advise("%s", newToken))
	case uid != root() || mode&0o077 != 0:
		return found(fail("%s has user %d and mode %04o; only root may read it", plan.TokenPath, uid, mode.Perm()).
			Safely("chown root:root %[1]s && chmod 600 %[1]s", plan.TokenPath))
	}
	switch token, err := agent.ParseToken([]byte(text)); {
	case err != nil:
		return found(fail("%s: %s", plan.TokenPath, err).Advise("%s", newToken))
	case placeholder().MatchString(token):
		return found(fail("%s contains a placeholder instead of a token", plan.TokenPath).Advise("%s", newToken))
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
			return found(fail("hook %s, so the slots run no job: %s", name, because(err)).
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
	{"NoNewPrivileges", "its agent can become root"},
}

// agentUnits looks for operators' drop-ins, which change settings without changing any file of kbnode.
func agentUnits(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		unit := plan.AgentUnit(s.Index)
		planned := m.planned(plan.UnitDir + "/" + unit)
		dropIns := slices.Concat(m.List(plan.UnitDir+"/"+unit+".d/*.conf"), m.List("/run/systemd/system/"+unit+".d/*.conf"))
		for _, name := range dropIns {
			text, _ := m.Read(name)
			for _, set := range unitSettings {
				want, have := unitValue(planned, set.key), unitValue(text, set.key)
				if have == "" || have == want || set.key == "TimeoutStopSec" && seconds(have) >= seconds(want) {
					continue
				}
				all = append(all, fail("%s is %.80q instead of %s: %s; set in %s", set.key, have, want, set.why, name).Of(s.Index).
					By(`sed -i '/^[[:space:]]*%s=/d' %s && systemctl daemon-reload`, set.key, word(name)))
			}
		}
	}
	return otherwise(all, ok("no drop-in changes them"))
}

// unitValue returns the last value of a setting in a unit file, or "".
func unitValue(text, key string) (value string) {
	for line := range strings.Lines(text) {
		if v, is := strings.CutPrefix(strings.TrimSpace(line), key+"="); is {
			value = strings.TrimSpace(v)
		}
	}
	return value
}

// seconds returns how long systemd waits; 0 if the text is not simple.
func seconds(text string) float64 {
	if n, err := strconv.ParseFloat(strings.Replace(text, "infinity", "inf", 1), 64); err == nil {
		return n
	}
	d, _ := time.ParseDuration(strings.Replace(text, "min", "m", 1))
	return d.Seconds()
}
