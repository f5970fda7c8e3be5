package doctor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestAgentFixes runs the commands that need no systemd, as printed, below the test's
// directory. They must fix what they are for.
func TestAgentFixes(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("they are for root")
	}
	for _, tt := range []struct {
		name string
		do   func(*world)
	}{
		{"all may read the token", func(w *world) { w.must(os.Chmod(w.Path(plan.TokenPath), 0o644)) }},
		{"all may write a hook", func(w *world) {
			w.put(plan.HooksDir+"/pre-exit", "true\n", 0o666)
			w.must(os.Chmod(w.Path(plan.HooksDir), 0o777))
		}},
		{"all may use a socket", func(w *world) { w.must(os.Chmod(w.Path(plan.SocketPath(1)), 0o666)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.do(w)
			fixes := w.fixes()
			if len(fixes) != 1 {
				t.Fatalf("%d commands", len(fixes))
			}
			w.run(fixes[0])
			if left := w.fixes(); len(left) > 0 {
				t.Errorf("still to type: %q", left)
			}
		})
	}
}

// TestDropInFix tests that the fix removes one line of an operator's drop-in and keeps the
// others.
func TestDropInFix(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"Restart=no", "  KillMode=process"} {
		w := newWorld(t)
		w.dropIn(1, line)
		for _, fix := range w.fixes() {
			w.run(fix)
		}
		text, err := w.Read(plan.UnitDir + "/" + plan.AgentUnit(1) + ".d/mine.conf")
		if err != nil || text != "[Service]\nEnvironment=HTTPS_PROXY=http://proxy\n" {
			t.Errorf("%s: %q, %v", line, text, err)
		}
	}
}

// fixes returns the commands to type now.
func (w *world) fixes() []string {
	var all []string
	for _, c := range w.ask().Checks {
		for _, f := range c.Findings {
			if f.Status > Skip && f.Fix != "" {
				all = append(all, f.Fix)
			}
		}
	}
	return all
}

// run runs a command below the world's directory, with a systemctl that does nothing.
func (w *world) run(command string) {
	w.t.Helper()
	w.put("/bin/systemctl", "#!/bin/sh\n", 0o755)
	command = regexp.MustCompile(`([ '])/(etc|run|usr)/`).ReplaceAllString(command, "${1}"+w.Root+"/$2/")
	cmd := exec.CommandContext(w.t.Context(), "/bin/sh", "-c", command)
	cmd.Env = []string{"PATH=" + w.Path("/bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v: %s", command, err, out)
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
		{"nobody listens", func(w *world) { w.Config.Agent.Endpoint = "http://" + nobody + "/v3" }, nobody + ": connection refused"},
		{"no URL", func(w *world) { w.Config.Agent.Endpoint = "agent.buildkite.com/v3" }, `agent.endpoint "agent.buildkite.com/v3" is not a URL`},
		{"unknown authority", func(w *world) { w.Config.Agent.Endpoint = secure.URL }, strings.TrimPrefix(secure.URL, "https://") + ": its certificate is signed by an authority that this machine does not trust"},
		{"no TLS", func(w *world) { w.Config.Agent.Endpoint = strings.Replace(plain.URL, "http:", "https:", 1) }, strings.TrimPrefix(plain.URL, "http://") + ": it answers without TLS"},
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

func TestExplain(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("https://agent.example/v3")
	must.Do(t, err)
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"no name", &net.DNSError{Name: "agent.example", IsNotFound: true}, "no such host: agent.example"},
		{"no DNS", &net.DNSError{Name: "agent.example", Err: "i/o timeout", IsTimeout: true}, "DNS does not answer for agent.example (i/o timeout)"},
		{"other name", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "agent.example"}, "its certificate is for another server"},
		{"expired", x509.CertificateInvalidError{Reason: x509.Expired, Cert: &x509.Certificate{NotBefore: time.Unix(0, 0), NotAfter: time.Unix(86400, 0)}},
			"its certificate is valid from 1970-01-01 00:00 to 1970-01-02 00:00, but this machine's clock says 2"},
		{"no route", &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}, "no route to it"},
		{"time out", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, "no answer"},
		{"anything", errors.New("a\nb"), "a; b"},
	} {
		got, todo := explain(&url.Error{Op: "Get", URL: at.String(), Err: tt.err}, at)
		if !strings.HasPrefix(got, tt.want) || todo == "" {
			t.Errorf("%s: %q, %q", tt.name, got, todo)
		}
	}
}
