package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestAgentToken(t *testing.T) {
	t.Parallel()
	const head = "# Written by kbnode\n"
	mine := func(text string) func(*world) { return func(w *world) { w.put(plan.TokenPath, text, 0o600) } }
	malformed := "agent-token fail: /etc/buildkite-agent/token: the agent token is malformed (a token has 6 to 1024 letters, digits and '-', '_', '.'); copy it again from Buildkite (Agents, Agent Tokens)"
	for _, tt := range []struct {
		name string
		do   func(*world)
		want string
		fix  string
	}{
		{"nothing but the token", mine(agentTokenOfTests + "\n"), "", ""},
		{"there is none", func(w *world) { w.must(os.Remove(w.Path(plan.TokenPath))) }, "agent-token fail: /etc/buildkite-agent/token is missing", ""},
		{"a directory", func(w *world) {
			w.must(os.Remove(w.Path(plan.TokenPath)))
			w.must(os.Mkdir(w.Path(plan.TokenPath), 0o700))
		}, "agent-token fail: /etc/buildkite-agent/token cannot be read or is not a file", ""},
		{"all may read it", func(w *world) { w.must(os.Chmod(w.Path(plan.TokenPath), 0o644)) },
			fmt.Sprintf("agent-token fail: /etc/buildkite-agent/token has user %d and mode 0644; only root may read it", root()),
			"chown root:root /etc/buildkite-agent/token && chmod 600 /etc/buildkite-agent/token"},
		{"empty", mine(""), "agent-token fail: /etc/buildkite-agent/token: no agent token found; write a line BUILDKITE_AGENT_TOKEN=… with the token from Buildkite (Agents, Agent Tokens)", ""},
		{"garbage", mine("BUILDKITE_AGENT_TOKEN=\x00\xff\xfe"), malformed, ""},
		{"xxx", mine("BUILDKITE_AGENT_TOKEN=xxx"), malformed, ""},
		{"a placeholder", mine(head + "BUILDKITE_AGENT_TOKEN=your-agent-token-here\n"), "agent-token fail: /etc/buildkite-agent/token contains a placeholder instead of a token", ""},
		{"a placeholder in brackets", mine("BUILDKITE_AGENT_TOKEN=INSERT_TOKEN\n"), "agent-token fail: /etc/buildkite-agent/token contains a placeholder instead of a token", ""},
		{"refused", mine("BUILDKITE_AGENT_TOKEN=other-token\n"), "agent-token-accepted fail: ENDPOINT refuses it: it was revoked, has expired, or belongs to another organization", ""},
		{"not asked", func(w *world) { w.answers["/v3/metrics"] = "500" },
			"agent-token-accepted warn: cannot check it: check agent token: ENDPOINT says 500 Internal Server Error", ""},
		{"a login page", func(w *world) { w.answers["/v3/metrics"] = "<html>" },
			"agent-token-accepted warn: cannot check it: check agent token: ENDPOINT does not respond like Buildkite: invalid character '<' looking for beginning of value", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.do(w)
			r := w.ask()
			w.expect(r, strings.ReplaceAll(tt.want, "ENDPOINT", w.bk.URL+"/v3"), tt.fix)
			for _, c := range r.Checks {
				for _, f := range c.Findings {
					for _, secret := range []string{agentTokenOfTests, "other-token", "0123456789abcdef", "an-api-token"} {
						if strings.Contains(f.Detail+f.Fix+f.Advice, secret) {
							t.Errorf("%s tells a token: %+v", c.ID, f)
						}
					}
				}
			}
		})
	}
}

// closed returns an address that nothing listens on.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestAgentEndpoint(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	nobody := closed(t)
	for _, tt := range []struct {
		name string
		do   func(*world)
		want string
	}{
		{"nobody listens", func(w *world) { w.Config.Agent.Endpoint = "http://" + nobody + "/v3" }, nobody + ": dial tcp " + nobody + ": connect: connection refused"},
		{"no URL", func(w *world) { w.Config.Agent.Endpoint = "agent.buildkite.com/v3" }, `agent.endpoint "agent.buildkite.com/v3" is not a URL`},
		{"no URL, but a login", func(w *world) { w.Config.Agent.Endpoint = "ci:hunter2@agent.example/v3" }, `agent.endpoint "xxxxx@agent.example/v3" is not a URL`},
		{"unknown authority", func(w *world) { w.Config.Agent.Endpoint = secure.URL }, strings.TrimPrefix(secure.URL, "https://") + ": tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		{"no TLS", func(w *world) { w.Config.Agent.Endpoint = strings.Replace(plain.URL, "http:", "https:", 1) }, strings.TrimPrefix(plain.URL, "http://") + ": http: server gave HTTP response to HTTPS client"},
		{"a login page", func(w *world) { w.answers["/v3"] = "302" }, `BK redirects to "https://login.example/", which agents do not follow`},
		{"Buildkite is down", func(w *world) { w.answers["/v3"] = "503" }, "BK says 503 Service Unavailable"},
		{"a proxy that wants a password", func(w *world) { w.answers["/v3"] = "407" }, "BK says 407 Proxy Authentication Required"},
		{"the agents' proxy is gone", func(w *world) {
			w.Config.Agent.Endpoint = "https://agent.example/v3"
			w.runs(7, "start", "/buildkite.slice/buildkite-gpu0.slice/x.service")
			w.put("/proc/7/environ", "A=b\x00https_proxy=http://somebody:password@"+nobody+"\x00", 0o400)
		}, "agent.example through proxy " + nobody + ": cannot reach the proxy: dial tcp " + nobody + ": connect: connection refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.do(w)
			want := "agent-endpoint fail: " + strings.Replace(tt.want, "BK", strings.TrimPrefix(w.bk.URL, "http://"), 1)
			if strings.Contains(tt.want, "is no URL") {
				want = "agent-endpoint fail: " + tt.want
			}
			w.expect(w.ask(), want, "")
		})
	}
	at := &url.URL{Scheme: "https", Host: "agent.example"}
	for want, err := range map[string]error{
		"DNS does not know it: lookup agent.example: no such host": &net.DNSError{Name: "agent.example", Err: "no such host"}, "a; b": errors.New("a\nb"),
	} {
		if what, todo := explain(&url.Error{Op: "Get", Err: err}, at); what != want || todo == "" {
			t.Errorf("%q, %q; want %q", what, todo, want)
		}
	}
}

// TestAgentChecksOfBareMachine tests a machine before kbnode install, without any of
// kbnode's files.
func TestAgentChecksOfBareMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(os.RemoveAll(w.Root))
	w.must(os.Mkdir(w.Root, 0o755))
	w.Inventory.Software.Agent.Path = ""
	bare := map[string]string{}
	for id, said := range summaries(w.ask()) {
		for _, c := range group("agent") {
			if c.ID == id && c.Bare {
				bare[id] = said
			}
		}
	}
	want := map[string]string{
		"agent-other": "ok: none", "agent-binary": "ok: not installed yet; kbnode install downloads " + plan.PinnedAgentVersion, "agent-version": "skip: no agent is installed",
		"agent-endpoint": "ok: " + strings.TrimPrefix(w.bk.URL, "http://"),
	}
	must.Equal(t, want, bare)
}
