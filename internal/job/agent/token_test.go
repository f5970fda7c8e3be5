package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestParseToken(t *testing.T) {
	t.Parallel()
	const token = "bkct_abc-DEF.123_xyz"
	for _, tt := range []struct {
		name, text string
		err        string
	}{
		{name: "nothing but the token", text: token},
		{name: "from a machine with other newlines", text: "\r\n" + token + "\r\n"},
		{name: "below a comment", text: "# from Buildkite\n\n" + token + "\n"},
		{name: "as a variable", text: "BUILDKITE_AGENT_TOKEN=" + token + "\n"},
		{name: "as a shell has it", text: "export BUILDKITE_AGENT_TOKEN='" + token + "'\nexport OTHER=1\n"},
		{name: "quoted among others", text: "A=1\nBUILDKITE_AGENT_TOKEN=\"" + token + "\"\n"},
		{name: "as an agent's configuration has it", text: "name=\"x\"\ntoken=\"" + token + "\"\ntags=\"queue=a\"\n"},
		{name: "with blanks around the sign", text: "token = " + token + "\n"},
		{name: "as kbnode writes it", text: "# " + plan.Marker + "\nBUILDKITE_AGENT_TOKEN=" + token + "\n"},
		{name: "empty", text: "", err: "no agent token found"},
		{name: "another variable", text: "BUILDKITE_TOKEN=" + token + "\n", err: "no agent token found"},
		{name: "two tokens", text: token + "\n" + token + "\n", err: "no agent token found"},
		{name: "no value", text: "BUILDKITE_AGENT_TOKEN=\n", err: "no agent token found"},
		{name: "as the package leaves it", text: "token=\"xxx\"\n", err: "malformed"},
		{name: "two words", text: token + " " + token + "\n", err: "malformed"},
		{name: "a variable within", text: "BUILDKITE_AGENT_TOKEN=$" + token + "\n", err: "malformed"},
		{name: "an escape sequence", text: token + "\x1b[2J", err: "malformed"},
		{name: "another script's letters", text: token + "ä", err: "malformed"},
		{name: "too long", text: strings.Repeat(token, 60), err: "malformed"},
		{name: "a line longer than any token", text: strings.Repeat(token, 10_000), err: "no agent token found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseToken([]byte(tt.text))
			must.Err(t, err, tt.err)
			must.Equal(t, map[bool]string{true: token}[tt.err == ""], got)
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the error tells the token: %v", err)
			}
			if strings.HasPrefix(tt.text, "# "+plan.Marker) {
				must.Equal(t, tt.text, RenderToken(token))
			}
		})
	}
}

func TestReadToken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if _, err := ReadToken(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{
		"":                          file + ": no agent token found; write a line BUILDKITE_AGENT_TOKEN=…",
		strings.Repeat("\n", 1<<17): file + ": no agent token found",
		"a b":                       file + ": the agent token is malformed",
	} {
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := ReadToken(file)
		must.Err(t, err, want)
	}
	if _, err := ReadToken(filepath.Dir(file)); err == nil {
		t.Error("a directory is read as a token")
	}
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	bk := bktest.New(bktest.Options{Queues: []string{"b200"}})
	must.Do(t, bk.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = bk.Close() })
	got, err := AskAccount(t.Context(), http.DefaultTransport, bk.Endpoint()+"/", bktest.DefaultAgentToken)
	if err != nil {
		t.Fatalf("right token: %v", err)
	}
	if q, there := got.Agents.Queues["b200"]; got.Organization.Slug != "kbnode" || !there || q.Total != 0 {
		t.Errorf("%+v", got)
	}
	const wrong = "wrong-token"
	err = CheckToken(t.Context(), bk.Endpoint(), wrong)
	if !errors.Is(err, ErrTokenRefused) || !strings.Contains(err.Error(), "401 Unauthorized") || !strings.Contains(err.Error(), "--token-file") || strings.Contains(err.Error(), wrong) {
		t.Errorf("wrong token: %v", err)
	}
	for from, says := range map[string]string{
		strings.Replace(bk.Endpoint(), "://", "://ci:hunter2@", 1): ErrTokenRefused.Error() + ": http://xxxxx@",
		"http://ci:hunter2@127.0.0.1:1/v3":                         "ask http://xxxxx@127.0.0.1:1/v3: dial tcp",
		"http://ci:hunter2/@127.0.0.1:1/v3":                        "http://xxxxx@127.0.0.1:1/v3 is not a valid address",
	} {
		if err := CheckToken(t.Context(), from, wrong); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q", from, err, says)
		}
	}
	if n := len(bk.Agents()); n > 0 {
		t.Errorf("asking registered %d agents", n)
	}
}

func TestCheckTokenLeavesTheQuestionOpen(t *testing.T) {
	t.Parallel()
	redirected := make(chan string, 1)
	var server *httptest.Server // its answers are the first part of a path
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(strings.Split(r.URL.Path, "/")[1])
		if err != nil {
			redirected <- r.Header.Get("Authorization")
			return
		}
		w.Header().Set("Location", server.URL+"/elsewhere")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<html>"))
	}))
	t.Cleanup(server.Close)
	closed := httptest.NewServer(nil)
	closed.Close()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name, endpoint, err string
		ctx                 context.Context
	}{
		{name: "no such call", endpoint: server.URL + "/404", err: "404 Not Found"},
		{name: "server in trouble", endpoint: server.URL + "/502", err: "502 Bad Gateway"},
		{name: "a page", endpoint: server.URL + "/200", err: "does not respond like Buildkite"},
		{name: "sent elsewhere", endpoint: server.URL + "/307", err: "307 Temporary Redirect"},
		{name: "nobody listens", endpoint: closed.URL, err: "connection refused"},
		{name: "no URL", endpoint: "agent.buildkite.com", err: "unsupported protocol scheme"},
		{name: "interrupted", endpoint: server.URL + "/200", err: "context canceled", ctx: cancelled},
	} {
		ctx := tt.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		err := CheckToken(ctx, tt.endpoint, "the-token")
		if err == nil || errors.Is(err, ErrTokenRefused) || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "the-token") {
			t.Errorf("%s: %v; want %q and no verdict", tt.name, err, tt.err)
		}
	}
	select {
	case header := <-redirected:
		t.Errorf("the token followed a redirect: %q", header)
	default:
	}
	for _, status := range []string{"/401", "/403"} {
		if err := CheckToken(t.Context(), server.URL+status, "the-token"); !errors.Is(err, ErrTokenRefused) {
			t.Errorf("status %s: %v", status, err)
		}
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	for status, says := range map[int]string{200: "", 401: "", 404: "", 302: "which says 302", 407: "which says 407", 503: "which says 503"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("a token was sent")
			}
			w.Header().Set("Location", "/")
			w.WriteHeader(status)
		}))
		err := Reach(t.Context(), http.DefaultTransport, server.URL)
		if says == "" {
			must.Do(t, err)
		} else {
			must.Err(t, err, says)
		}
		server.Close()
	}
	must.Err(t, Reach(t.Context(), http.DefaultTransport, "http://user:secret@127.0.0.1:1/v3"), "127.0.0.1:1/v3, which does not answer: ")
	if err := Reach(t.Context(), http.DefaultTransport, "http://user:secret@127.0.0.1:1/v3"); strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}
