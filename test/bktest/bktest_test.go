package bktest_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

func listen(t *testing.T, o bktest.Options) *bktest.Server {
	t.Helper()
	s := bktest.New(o)
	must.Do(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// clock is a clock that tests advance by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// answer is the response to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// get returns a value from a JSON response; path elements are keys or indices.
func (a answer) get(t *testing.T, path ...any) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[p.(string)]
		case []any:
			if i := p.(int); i < len(x) {
				v = x[i]
				continue
			}
			return nil
		default:
			return nil
		}
	}
	return v
}

func (a answer) text(t *testing.T, path ...any) string {
	t.Helper()
	s, _ := a.get(t, path...).(string)
	return s
}

// send makes one request without following redirects.
func send(t *testing.T, method, url, auth string, body any, header ...string) answer {
	t.Helper()
	text, raw := body.([]byte)
	if !raw && body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(text))
	must.Do(t, err)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	must.Do(t, err)
	data, err := io.ReadAll(resp.Body)
	must.Do(t, errors.Join(err, resp.Body.Close()))
	return answer{resp.StatusCode, resp.Header, data}
}

// rawAgent calls the agent API directly.
type rawAgent struct {
	t     *testing.T
	s     *bktest.Server
	id    string
	token string
}

func register(t *testing.T, s *bktest.Server, name string, tags ...string) *rawAgent {
	t.Helper()
	a := send(t, "POST", s.Endpoint()+"/register", "Token "+bktest.DefaultAgentToken,
		map[string]any{"name": name, "hostname": "host", "meta_data": tags, "priority": "3", "version": "3.76.2"})
	if a.status != http.StatusOK {
		t.Fatalf("register: %d %s", a.status, a.body)
	}
	r := &rawAgent{t, s, a.text(t, "id"), a.text(t, "access_token")}
	r.do("POST", "/connect", nil, http.StatusOK)
	return r
}

func (r *rawAgent) do(method, path string, body any, want int) answer {
	r.t.Helper()
	a := send(r.t, method, r.s.Endpoint()+path, "Token "+r.token, body)
	if a.status != want {
		r.t.Fatalf("%s %s: %d %s; want %d", method, path, a.status, a.body, want)
	}
	return a
}

// offered returns the ID of the job that a ping offers, or "".
func (r *rawAgent) offered() string {
	r.t.Helper()
	return r.do("GET", "/ping", nil, http.StatusOK).text(r.t, "job", "id")
}

// begin accepts the offered job and starts it.
func (r *rawAgent) begin() (id string, accepted answer) {
	r.t.Helper()
	id = r.offered()
	if id == "" {
		r.t.Fatal("no job is offered")
	}
	accepted = r.do("PUT", "/jobs/"+id+"/accept", nil, http.StatusOK)
	r.do("PUT", "/jobs/"+id+"/start", map[string]string{"started_at": "now"}, http.StatusOK)
	return id, accepted
}

func (r *rawAgent) finish(id string, status int) {
	r.t.Helper()
	r.do("PUT", "/jobs/"+id+"/finish", map[string]any{"exit_status": fmt.Sprint(status), "finished_at": "now"}, http.StatusOK)
}

func (r *rawAgent) chunk(id string, sequence, offset int, text string) answer {
	r.t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := io.WriteString(w, text); err != nil {
		r.t.Fatal(err)
	}
	must.Do(r.t, w.Close())
	u := fmt.Sprintf("%s/jobs/%s/chunks?sequence=%d&offset=%d&size=%d", r.s.Endpoint(), id, sequence, offset, len(text))
	return send(r.t, "POST", u, "Token "+r.token, z.Bytes(), "Content-Type", "text/plain", "Content-Encoding", "gzip")
}

// upload stores a file as an artifact of the job, as an agent does, and returns the store's
// response.
func (r *rawAgent) upload(id, path, content string, auth string) answer {
	r.t.Helper()
	made := r.do("POST", "/jobs/"+id+"/artifacts", map[string]any{
		"id": "batch", "artifacts": []any{map[string]any{"path": path, "file_size": len(content)}},
	}, http.StatusCreated)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	data, _ := made.get(r.t, "upload_instructions", "data").(map[string]any)
	for k, v := range data {
		field := bytes.ReplaceAll([]byte(v.(string)), []byte("${artifact:path}"), []byte(path))
		must.Do(r.t, w.WriteField(k, string(field)))
	}
	f, err := w.CreateFormFile("file", path)
	must.Do(r.t, err)
	if _, err := io.WriteString(f, content); err != nil {
		r.t.Fatal(err)
	}
	must.Do(r.t, w.Close())
	action := func(k string) string { return made.text(r.t, "upload_instructions", "action", k) }
	stored := send(r.t, action("method"), action("url")+action("path"), auth, form.Bytes(), "Content-Type", w.FormDataContentType())
	state := "finished"
	if stored.status != http.StatusNoContent {
		state = "error"
	}
	r.do("PUT", "/jobs/"+id+"/artifacts", map[string]any{
		"artifacts": []any{map[string]string{"id": made.text(r.t, "artifact_ids", 0), "state": state}},
	}, http.StatusOK)
	return stored
}

const bearer = "Bearer " + bktest.DefaultAPIToken

func rest(t *testing.T, s *bktest.Server, method, path string, body any) answer {
	t.Helper()
	return send(t, method, s.URL()+"/v2/organizations/kbnode"+path, bearer, body)
}

func mustSubmit(t *testing.T, s *bktest.Server, nb bktest.NewBuild) bktest.Build {
	t.Helper()
	b, err := s.Submit(nb)
	must.Do(t, err)
	return b
}
