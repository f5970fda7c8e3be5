package runner

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/runner/annotate"
)

// annotations is a fake of the agent API that takes annotations.
type annotations struct {
	*httptest.Server
	mu      sync.Mutex
	answers []int // statuses of the next requests; 200 when there are none
	got     []map[string]any
	seen    func(*http.Request)
}

func newAnnotations(t *testing.T, answers ...int) *annotations {
	t.Helper()
	a := &annotations{answers: answers}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		var doc map[string]any
		if err := json.NewDecoder(io.LimitReader(req.Body, 1<<20)).Decode(&doc); err != nil {
			t.Errorf("body: %v", err)
		}
		a.got = append(a.got, doc)
		if req.Method != http.MethodPost || req.URL.Path != "/v3/jobs/0190-job/annotations" ||
			req.Header.Get("Authorization") != "Token bkaj-123456789" || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("asked %s %s with %v", req.Method, req.URL, req.Header)
		}
		if a.seen != nil {
			a.seen(req)
		}
		if len(a.answers) == 0 {
			return
		}
		if a.answers[0] == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(a.answers[0])
		_, _ = io.WriteString(w, `{"message": "the server's\u001b[31m words"}`)
		a.answers = a.answers[1:]
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *annotations) api() result.Annotation {
	return result.Annotation{Endpoint: a.URL + "/v3", JobID: "0190-job", Token: "bkaj-123456789", Body: "body", Style: "success"}
}

func (a *annotations) requests() []map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got
}

func TestAnnotate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		answers  []int
		requests int
		want     string // error
	}{
		{"taken", nil, 1, ""},
		{"taken the second time", []int{503}, 2, ""},
		{"busy twice", []int{429, 500, 500}, 2, "it answered 500 Internal Server Error the server's words"},
		{"refused", []int{401}, 1, "it answered 401 Unauthorized the server's words"},
		{"sent elsewhere", []int{302}, 1, "it answered 302 Found the server's words"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAnnotations(t, c.answers...)
			err := annotate.Post(t.Context(), a.api())
			if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			got := a.requests()
			if len(got) != c.requests {
				t.Errorf("%d requests", len(got))
			}
			want := map[string]any{"body": "body", "style": "success", "context": "kbnode-0190-job", "append": false}
			if d := cmp.Diff(want, got[0]); d != "" {
				t.Error(d)
			}
		})
	}
	closed := newAnnotations(t)
	closed.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	whole := closed.api()
	for _, c := range []struct {
		name string
		ctx  context.Context
		api  result.Annotation
		want string
	}{
		{"nobody listens", t.Context(), whole, "connection refused"},
		{"no time", ended, whole, "context canceled"},
		{"no token", t.Context(), result.Annotation{Endpoint: whole.Endpoint, JobID: whole.JobID}, "BUILDKITE_AGENT_ACCESS_TOKEN is not set"},
		{"no endpoint", t.Context(), result.Annotation{JobID: whole.JobID, Token: whole.Token}, "not an HTTP URL"},
		{"no job", t.Context(), result.Annotation{Endpoint: whole.Endpoint, Token: whole.Token}, "BUILDKITE_JOB_ID is not set"},
		{"a file", t.Context(), result.Annotation{Endpoint: "file:///etc", JobID: whole.JobID, Token: whole.Token}, "not an HTTP URL"},
	} {
		err := annotate.Post(c.ctx, c.api)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		} else if strings.Contains(err.Error(), whole.Token) {
			t.Errorf("%s: the token is in %v", c.name, err)
		}
	}
}

func TestAnnotationOfTheEnvironment(t *testing.T) {
	t.Parallel()
	got := newAnnotation([]string{"BUILDKITE_JOB_ID=0190-job"}, []string{"BUILDKITE_AGENT_ACCESS_TOKEN=bkaj-123456789"})
	want := result.Annotation{Endpoint: "https://agent.buildkite.com/v3", JobID: "0190-job", Token: "bkaj-123456789"}
	if got != want {
		t.Errorf("got %v", got)
	}
}

// TestAnnotateInJob checks that a job annotates its build after its result is written,
// and that its submission does not see the token.
func TestAnnotateInJob(t *testing.T) {
	t.Parallel()
	look := report + `
o("test-count: 1\ntest.0.status: pass\ncheck: pass\ntoken: %s\n" % ("BUILDKITE_AGENT_ACCESS_TOKEN" in os.environ))`
	a := newAnnotations(t)
	env := []string{"KBNODE_TEST_ANNOTATE=1", "BUILDKITE=true", "BUILDKITE_AGENT_ENDPOINT=" + a.URL + "/v3",
		"BUILDKITE_JOB_ID=0190-job", "BUILDKITE_AGENT_ACCESS_TOKEN=bkaj-123456789"}
	dir := t.TempDir()
	a.seen = func(*http.Request) {
		if _, err := os.Stat(filepath.Join(dir, result.File)); err != nil {
			t.Errorf("asked before the result was there: %v", err)
		}
	}
	config := filepath.Join(t.TempDir(), "task.json")
	text, err := json.Marshal(map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"eval.py": look}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, config, string(text))
	for _, c := range []struct {
		name, style, body string
		code              int
		answers           []int
		config            string
	}{
		{"passed", "success", "**Passed: test**\n", 0, nil, config},
		{"refused by the server", "success", "**Passed: test**\n", 0, []int{401}, config},
		{"no payload", "error", "**No verdict: read payload: open", 1, nil, config + ".gone"},
	} {
		j := newJob(t, append(env, "KBNODE_TEST_CONFIG="+c.config)...)
		j.cmd.Dir = dir
		a.mu.Lock()
		a.got, a.answers = nil, c.answers
		a.mu.Unlock()
		code, result := j.run(t)
		got := a.requests()
		if code != c.code || len(got) != 1 || got[0]["style"] != c.style || !strings.HasPrefix(got[0]["body"].(string), c.body) {
			t.Errorf("%s: exit code %d, asked %v\n%s", c.name, code, got, j.stderr.String())
		}
		if c.code == 0 && at(result, "runs", "test", "run", "result", "token") != "False" {
			t.Errorf("%s: result %v", c.name, result)
		}
		if said := strings.Contains(j.stderr.String(), "kbnode runner: no annotation: "); said != (len(c.answers) > 0) {
			t.Errorf("%s: the log says %q", c.name, j.stderr.String())
		}
	}
	a.got = nil
	j := newJob(t, append(env, "KBNODE_TEST_CONFIG="+config, "KBNODE_TEST_ANNOTATE=none")...)
	if code, _ := j.run(t); code != 0 || len(a.got) != 0 || !strings.Contains(j.stderr.String(), "no annotation: the program for jobs makes none") {
		t.Errorf("without a client: exit code %d, asked %v\n%s", code, a.got, j.stderr.String())
	}
}
