package bktest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const builds = "/pipelines/kernelbot/builds"

func TestCreateBuild(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{Pipelines: []bktest.Pipeline{{Slug: "kernelbot", Steps: `steps: [{command: configured}]`}}})
	tests := map[string]struct {
		path    string
		body    any
		status  int
		message string // part of it
		command string // of the job
	}{
		"the pipeline's own steps": {builds, map[string]any{"commit": "HEAD", "branch": "main"}, 201, "", "configured"},
		"steps of its own, as JSON": {builds, map[string]any{"commit": "HEAD", "branch": "main", "env": map[string]string{"A": "b"},
			"steps": []any{map[string]any{"commands": []string{"echo ${A}", "echo $$A ${C:-d}"}}}}, 201, "", "echo b\necho $A d"},
		"steps of its own, as YAML": {builds, map[string]any{"commit": "HEAD", "branch": "main", "steps": "steps: [{command: text}]"}, 201, "", "text"},
		"no commit":                 {builds, map[string]any{"branch": "main"}, 422, "Commit", ""},
		"no JSON":                   {builds, []byte("{"), 400, "JSON", ""},
		"another pipeline":          {"/pipelines/other/builds", map[string]any{"commit": "HEAD", "branch": "main"}, 404, "No pipeline", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rest(t, s, "POST", tt.path, tt.body)
			if got.status != tt.status || !strings.Contains(got.text(t, "message"), tt.message) {
				t.Fatalf("%d %s; want %d %s", got.status, got.body, tt.status, tt.message)
			}
			if command := got.text(t, "jobs", 0, "command"); command != tt.command {
				t.Errorf("command is %q; want %q", command, tt.command)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	a := register(t, s, "a")
	mustSubmit(t, s, bktest.NewBuild{Steps: `steps: [{command: x}, {command: y}]`})
	id, _ := a.begin()
	if got := rest(t, s, "PUT", builds+"/1/cancel", nil); got.text(t, "state") != "canceling" {
		t.Errorf("build is %s", got.body)
	}
	if got := a.do("GET", "/jobs/"+id, nil, http.StatusOK).text(t, "state"); got != "canceling" {
		t.Errorf("the agent hears %q", got)
	}
	a.finish(id, 255)
	got := s.Builds()[0]
	must.Equal(t, []string{"canceled", "canceled", "canceled"}, []string{got.State, got.Jobs[0].State, got.Jobs[1].State})
	if got := rest(t, s, "PUT", builds+"/1/cancel", nil); got.status != http.StatusUnprocessableEntity {
		t.Errorf("cancel again: %d", got.status)
	}
	// A job that is canceled between offer and acceptance is gone.
	mustSubmit(t, s, bktest.NewBuild{Steps: `steps: [{command: x}]`})
	offer := a.offered()
	rest(t, s, "PUT", builds+"/2/cancel", nil)
	a.do("PUT", "/jobs/"+offer+"/accept", nil, http.StatusUnprocessableEntity)
	if got := a.offered(); got != "" {
		t.Errorf("offered %s", got)
	}
}

func TestArtifacts(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := listen(t, bktest.Options{Now: c.now})
	a := register(t, s, "a")
	mustSubmit(t, s, bktest.NewBuild{Steps: `steps: [{command: x}]`})
	id, _ := a.begin()
	if got := a.upload(id, "result.json", "{}", "Token "+a.token); got.status != http.StatusBadRequest {
		t.Errorf("upload with an Authorization header: %d %s", got.status, got.body)
	}
	a.upload(id, "result.json", `{"success":true}`, "")
	a.upload(id, "profile_data/p.ncu-rep", "p", "")
	const odd = "/abs//a b/../ü?.txt" // a job may choose any names for its files
	a.upload(id, odd, "odd", "")
	a.finish(id, 1)

	all := rest(t, s, "GET", builds+"/1/artifacts", nil)
	found := send(t, "GET", all.text(t, 3, "download_url"), bearer, nil)
	if got := send(t, "GET", found.header.Get("Location"), "", nil); all.text(t, 3, "path") != odd || string(got.body) != "odd" {
		t.Errorf("%s: %d %s", all.text(t, 3, "path"), got.status, got.body)
	}
	list := rest(t, s, "GET", builds+"/1/artifacts?path=result.json&state=finished", nil)
	if n := len(list.get(t).([]any)); n != 1 {
		t.Fatalf("%d artifacts: %s", n, list.body)
	}
	redirect := send(t, "GET", list.text(t, 0, "download_url"), bearer, nil)
	link := redirect.header.Get("Location")
	if redirect.status != http.StatusFound || redirect.text(t, "url") != link {
		t.Fatalf("download: %d %s, to %s", redirect.status, redirect.body, link)
	}
	for name, tt := range map[string]struct {
		link, auth string
		status     int
		body       string
	}{
		"the link":                {link, "", 200, `{"success":true}`},
		"the link with a token":   {link, bearer, 400, "Only one auth mechanism"},
		"a link to another file":  {strings.Replace(link, "result.json", "other.json", 1), "", 403, "SignatureDoesNotMatch"},
		"a link that is extended": {link + "&X-Expires=99999999999999", "", 200, `{"success":true}`}, // the first parameter counts
	} {
		if got := send(t, "GET", tt.link, tt.auth, nil); got.status != tt.status || !strings.Contains(string(got.body), tt.body) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	c.pass(61 * time.Second)
	if got := send(t, "GET", link, "", nil); got.status != http.StatusForbidden || !strings.Contains(string(got.body), "expired") {
		t.Errorf("after a minute: %d %s", got.status, got.body)
	}
	log := rest(t, s, "GET", builds+"/1/jobs/"+id+"/log", nil)
	if got := log.get(t, "content"); got != "" {
		t.Errorf("log is %v", got)
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := listen(t, bktest.Options{Now: c.now, RateLimit: 2})
	for i, want := range []int{200, 200, 429} {
		got := rest(t, s, "GET", "/agents", nil)
		if got.status != want || got.header.Get("RateLimit-Limit") != "2" || got.header.Get("RateLimit-User-Remaining") != fmt.Sprint(max(1-i, 0)) {
			t.Errorf("request %d: %d %v", i+1, got.status, got.header)
		}
		if want == 429 && (got.text(t, "scope") != "rest" || got.get(t, "reset") != 60.0) {
			t.Errorf("refusal: %s", got.body)
		}
	}
	c.pass(time.Minute)
	if got := rest(t, s, "GET", "/agents", nil); got.status != http.StatusOK {
		t.Errorf("a minute later: %d", got.status)
	}
}
