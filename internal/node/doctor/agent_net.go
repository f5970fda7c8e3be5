package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// answerTime limits the request to Buildkite.
const answerTime = 8 * time.Second

// agentEndpoint connects to Buildkite as agents do, step by step, without sending a token.
func agentEndpoint(ctx context.Context, m *Machine) Answer {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	endpoint := m.endpoint()
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" {
		return found(fail("agent.endpoint %.100q is not a URL", config.HideURL(endpoint)).Advise("correct it in %s", plan.ConfigPath))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return found(fail("agent.endpoint: %s", err).Advise("correct it in %s", plan.ConfigPath))
	}
	network, proxies := m.agentNetwork()
	through := ""
	if proxy, err := proxies.ProxyFunc()(at); err == nil && proxy != nil {
		through = " through proxy " + proxy.Host
	}
	client := &http.Client{Transport: network, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		what, todo := explain(err, at)
		return found(fail("%s%s: %s", at.Host, through, what).Advise("%s", todo))
	}
	_ = resp.Body.Close()
	return found(m.reached(resp, at, through))
}

// reached judges the first answer of an endpoint.
func (m *Machine) reached(resp *http.Response, at *url.URL, through string) Finding {
	switch {
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusProxyAuthRequired:
		return fail("%s%s says %s", at.Host, through, resp.Status).Advise("see https://www.buildkitestatus.com, and check any proxy in between")
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return fail("%s%s redirects to %.100q, which agents do not follow", at.Host, through, resp.Header.Get("Location")).
			Advise("a proxy in between requires a login, or agent.endpoint in %s is wrong", plan.ConfigPath)
	case at.Scheme == "https" && resp.ProtoMajor < 2 && plan.AgentStreams(m.Config.Agent.Endpoint, m.agentVersion()):
		return warn("%s%s answers by HTTP/1.1: without HTTP/2, no job is sent at once, and agents ask for one every few seconds", at.Host, through).
			Advise("let the proxy or firewall in between pass HTTP/2, or write agent.endpoint: %s into %s to poll on purpose", config.PollingEndpoint, plan.ConfigPath)
	case at.Scheme == "http" && !loopback(at.Hostname()):
		return warn("%s answers without TLS, so anyone on the network can read the token", at.Host).Advise("use https:// for agent.endpoint in %s", plan.ConfigPath)
	}
	return ok("%s%s", at.Host, through)
}

// endpoint returns where the agents connect to.
func (m *Machine) endpoint() string {
	return plan.AgentEndpoint(m.Config.Agent.Endpoint, m.agentVersion())
}

// agentVersion returns the version that slots run, or else the one that is installed; "" if there is none.
func (m *Machine) agentVersion() string {
	if m.Plan != nil && len(m.Plan.Slots) > 0 && m.Plan.Slots[0].AgentVersion != "" {
		return m.Plan.Slots[0].AgentVersion
	}
	if m.Inventory != nil {
		return m.Inventory.Software.Agent.Version
	}
	return ""
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// agentNetwork returns how the agents reach Buildkite. It takes the proxies from a running
// agent, because operators put them into its unit, or else from kbnode's own environment.
func (m *Machine) agentNetwork() (*http.Transport, *httpproxy.Config) {
	proxies := httpproxy.FromEnvironment()
	for _, pid := range m.agents() {
		if env, err := m.Read(fmt.Sprintf("/proc/%d/environ", pid)); err == nil {
			proxies = proxiesOf(env)
			break
		}
	}
	ask := proxies.ProxyFunc()
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Transport{
		Proxy:       func(r *http.Request) (*url.URL, error) { return ask(r.URL) },
		DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}, proxies
}

// proxiesOf returns the proxies in a process's environment, in the form of
// /proc/PID/environ.
func proxiesOf(environ string) *httpproxy.Config {
	env := map[string]string{}
	for v := range strings.SplitSeq(environ, "\x00") {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	value := func(name string) string { return cmp.Or(env[name], env[strings.ToLower(name)]) }
	return &httpproxy.Config{HTTPProxy: value("HTTP_PROXY"), HTTPSProxy: value("HTTPS_PROXY"), NoProxy: value("NO_PROXY")}
}

// explain returns how far a connection got, and what to do.
func explain(err error, at *url.URL) (what, todo string) {
	if u, is := errors.AsType[*url.Error](err); is {
		err = u.Err // it repeats the URL
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case isDNS:
		return "DNS does not know it: " + dns.Error(), "check /etc/resolv.conf, and agent.endpoint in " + plan.ConfigPath
	case isOp && op.Op == "proxyconnect":
		return "cannot reach the proxy: " + op.Err.Error(), "see HTTPS_PROXY in systemctl cat " + plan.AgentUnit(0)
	case errors.Is(err, context.DeadlineExceeded), isOp:
		return lines(err), fmt.Sprintf("the firewall must allow connections to %s, port %s", at.Hostname(), cmp.Or(at.Port(), map[string]string{"http": "80"}[at.Scheme], "443"))
	case strings.Contains(err.Error(), "x509: "):
		return lines(err), "check the clock (sudo timedatectl set-ntp true) and the package ca-certificates; if a proxy intercepts TLS, add its certificate (update-ca-certificates, on RHEL update-ca-trust)"
	}
	return lines(err), "see the output of curl -v " + at.Scheme + "://" + at.Host
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// tokenAccepted sends the token to Buildkite without registering an agent.
func tokenAccepted(ctx context.Context, m *Machine) Answer {
	token, err := agent.ReadToken(m.Path(plan.TokenPath))
	if err != nil {
		return found(fail("%s", lines(err)).Advise("%s", adviceForAnother))
	}
	network, _ := m.agentNetwork()
	account, err := agent.AskAccount(ctx, network, m.endpoint(), token)
	switch {
	case errors.Is(err, agent.ErrTokenRefused):
		return found(fail("%s refuses it: it was revoked, has expired, or belongs to another organization", config.HideURL(m.endpoint())).Advise("%s", adviceForAnother))
	case err != nil:
		return found(warn("cannot check it: %s", lines(err)).Advise("try again; agent-running says whether agents register"))
	}
	return Answer{
		Findings: []Finding{ok("organization %s", cmp.Or(account.Organization.Slug, "unnamed"))},
		Keep:     func(m *Machine) { m.Account = account },
	}
}
