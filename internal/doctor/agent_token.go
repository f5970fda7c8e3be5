package doctor

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// newToken is the advice for an unusable token.
const newToken = "copy a token from Buildkite (Agents, Agent Tokens) to a file, delete " + plan.TokenPath + " if you wrote it by hand, and run sudo kbnode install --token-file FILE"

// placeholder matches what guides write in place of a token.
var placeholder = lazy.Regexp(`(?i)^(x{3,}|.*(your|insert|replace|change)[-_.]?(agent|bk|buildkite|token|me|here|this).*|.*token[-_.]here.*|token|secret|todo)$`)

// plainToken removes what surrounds the token in its line.
const plainToken = `sed -i -E 's/^(export )?[[:space:]]*(token|BUILDKITE_AGENT_TOKEN)[[:space:]]*=|^[[:space:]]+/BUILDKITE_AGENT_TOKEN=/; /^#/!s/["'"'"'[:space:]]//g'` //nolint:gosec // holds no token

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
		return found(fail("%s has user %d and mode %04o, so jobs may read it", plan.TokenPath, uid, mode.Perm()).
			Safely("chown root:root %[1]s && chmod 600 %[1]s", plan.TokenPath))
	}
	token, err := agent.ParseToken([]byte(text))
	var lines []string
	for line := range strings.Lines(text) {
		if l := strings.TrimSuffix(line, "\n"); l != "" && !strings.HasPrefix(l, "#") {
			lines = append(lines, l)
		}
	}
	switch {
	case err != nil:
		return found(fail("%s: %s", plan.TokenPath, err).Advise("%s", newToken))
	case placeholder().MatchString(token):
		return found(fail("%s contains a placeholder instead of a token", plan.TokenPath).Advise("%s", newToken))
	case len(lines) != 1:
		return found(warn("%s has %d lines, but only one counts", plan.TokenPath, len(lines)).Advise("leave only the line BUILDKITE_AGENT_TOKEN=… in it"))
	case lines[0] != "BUILDKITE_AGENT_TOKEN="+token && lines[0] != token:
		return found(warn("its line is not exactly BUILDKITE_AGENT_TOKEN=… (quotes, blanks or Windows line endings): kbnode can read it, other programs may not").
			By("%s %s", plainToken, plan.TokenPath))
	}
	return found(ok("mode 0600"))
}

// tokenPlaces are where earlier setups, and the agent's own package, keep a token.
var tokenPlaces = []string{
	"/etc/buildkite-agent/*.cfg", "/etc/buildkite-agent/agent-*/*", "/etc/buildkite-agent/*.bak", "/etc/buildkite-agent/token?*", "/etc/default/buildkite-agent*",
	plan.UnitDir + "/buildkite-agent*.service", plan.UnitDir + "/buildkite-agent*.service.d/*.conf",
}

var tokenLine = lazy.Regexp(`(?m)^[^#\n]*\b(?:token|BUILDKITE_AGENT_TOKEN)\s*=\s*["']?([A-Za-z0-9_.-]{6,})`)

func tokenElsewhere(_ context.Context, m *Machine) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see /etc/passwd"))
	}
	ours := map[int]bool{}
	for _, s := range m.Plan.Slots {
		if u, there := users[s.User]; there {
			ours[u.UID] = true
		}
	}
	var all []Finding
	for _, pattern := range tokenPlaces {
		for _, name := range m.List(pattern) {
			text, err := m.Read(name)
			got := tokenLine().FindStringSubmatch(text)
			uid, _, mode := m.Owner(name)
			if err != nil || got == nil || placeholder().MatchString(got[1]) {
				continue
			}
			switch unit := strings.HasPrefix(name, plan.UnitDir); {
			case unit:
				all = append(all, fail("%s contains a token, and systemd shows it to everyone", name).
					Advise("remove the line, run sudo systemctl daemon-reload, and make a new token in Buildkite: this one is exposed"))
			case ours[uid] || mode&0o004 != 0:
				all = append(all, fail("%s contains a token that jobs can read (user %d, mode %04o)", name, uid, mode.Perm()).
					By("chown root:root %[1]s && chmod 600 %[1]s", word(name)).Advise("if jobs have run since, make a new token in Buildkite: this one may be exposed"))
			}
		}
	}
	return otherwise(slices.CompactFunc(all, func(a, b Finding) bool { return a.Detail == b.Detail }), ok("none"))
}
