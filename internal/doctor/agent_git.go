package doctor

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// gitTime is the time limit of git, in seconds.
const gitTime = 8

// gitScript runs git as jobs do, but does not check out. Its last line is the exit status.
const gitScript = `exec 2>&1
GIT_TERMINAL_PROMPT=0 HOME=/nonexistent LC_ALL=C timeout "$3" "$1" ls-remote "$2" HEAD
echo "exit $?"`

// gitHTTPS connects to a repository's server as the user of an idle slot.
func gitHTTPS(ctx context.Context, m *Machine) Answer {
	i := slices.IndexFunc(m.Plan.Slots, func(s plan.Slot) bool {
		ss := m.State.Slot(s.Index)
		return ss.Busy() == "" && ss.Slice.Cgroup != ""
	})
	if i < 0 {
		return none("no slot is idle")
	}
	s := m.Plan.Slots[i]
	repo := repository(m.Config.Agent.AllowedRepositories)
	at, err := url.Parse(repo)
	if err != nil {
		return none("agent.allowed_repositories names no server")
	}
	_, proxies := m.agentNetwork(ctx)
	argv := []string{"/bin/sh", "-c", gitScript, "sh", m.Inventory.Software.Git, repo, fmt.Sprint(gitTime)}
	if proxy, err := proxies.ProxyFunc()(at); err == nil && proxy != nil {
		if proxy.User != nil {
			return none("the agents' proxy has a password, which must not appear on a command line")
		}
		argv = append([]string{"/usr/bin/env", "https_proxy=" + proxy.String(), "http_proxy=" + proxy.String()}, argv...)
	}
	out, err := m.Source.Program(ctx, systemd.Program{
		Unit: "kbnode-doctor-git-" + s.Name + ".service", Slice: plan.SliceName(s.Index), User: s.User, Argv: argv, Limit: (gitTime + 2) * time.Second,
	})
	if err != nil {
		return found(warn("cannot run git as %s: %s", s.User, lines(err)).Of(s.Index).Advise("see sudo journalctl -u kbnode-doctor-git-%s", s.Name))
	}
	f := gitAnswer(string(out), at.Host)
	if f.Status > OK {
		f = f.Of(s.Index).Advise("%s", f.Advice+"; try sudo -u "+s.User+" git ls-remote "+repo)
	}
	return found(f)
}

// gitAnswer interprets git's output. A server that wants a login, or does not know the
// repository, was reached.
func gitAnswer(out, host string) Finding {
	said := strings.Split(strings.TrimSpace(out), "\n")
	status := said[len(said)-1]
	why := ""
	for _, line := range said[:len(said)-1] {
		if text, is := strings.CutPrefix(line, "fatal: "); is {
			why = text
		}
	}
	low := strings.ToLower(out)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(low, w) })
	}
	switch {
	case status == "exit 0", has("not found", "could not read username", "authentication failed", "terminal prompts disabled") && !has("could not resolve"):
		return ok("%s", host)
	case status == "exit 124":
		return warn("no answer from %s in %d s", host, gitTime).Advise("check that the firewall allows jobs' checkouts")
	case has("could not resolve"):
		return warn("cannot resolve %s", host).Advise("check /etc/resolv.conf, and whether the network needs a proxy")
	case has("certificate"):
		return warn("git rejects the certificate of %s: %.200s", host, why).Advise("update the package ca-certificates, and check the clock with timedatectl")
	case why != "":
		return warn("git cannot reach %s: %.200s", host, why).Advise("check that the firewall allows jobs' checkouts")
	}
	return warn("git cannot reach %s (%.100q)", host, status).Advise("check that the firewall allows jobs' checkouts")
}

var repositoryHost = lazy.Regexp(`https?:/+([A-Za-z0-9-]+(?:(?:\.|\\\.)[A-Za-z0-9-]+)*(?::[0-9]+)?)`)

// repository returns a repository that the patterns of allowed repositories match, or at
// least one on the same server.
func repository(patterns []string) string {
	for _, p := range patterns {
		whole := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(p, "^"), "$"), `\.`, ".")
		if strings.HasPrefix(whole, "http") && !strings.ContainsAny(whole, `*+?()[]{}|^$\`) {
			return whole
		}
	}
	for _, p := range patterns {
		host := repositoryHost().FindStringSubmatch(p)
		if host == nil {
			continue
		}
		scheme, _, _ := strings.Cut(host[0], ":")
		if name := strings.ReplaceAll(host[1], `\.`, "."); name != "github.com" {
			return scheme + "://" + name + "/"
		}
	}
	return "https://github.com/gpu-mode/kernelbot"
}
