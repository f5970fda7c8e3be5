package doctor

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// closed returns an address that nothing listens on.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
			w.put("/proc/7/comm", "buildkite-agent\n", 0o644)
			w.put("/proc/7/cmdline", "buildkite-agent\x00start\x00", 0o644)
			w.put("/proc/7/cgroup", "0::/buildkite.slice/buildkite-gpu0.slice/x.service\n", 0o644)
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
	if diff := cmp.Diff(want, bare); diff != "" {
		t.Error(diff)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("https://agent.example/v3")
	if err != nil {
		t.Fatal(err)
	}
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
