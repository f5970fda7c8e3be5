package bktest_test

import (
	"net/http"
	"testing"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const builds = "/pipelines/kernelbot/builds"

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
	s := listen(t, bktest.Options{})
	a := register(t, s, "a")
	mustSubmit(t, s, bktest.NewBuild{Steps: `steps: [{command: x}]`})
	id, _ := a.begin()
	if got := a.upload(id, "result.json", "{}", "Token "+a.token); got.status != http.StatusBadRequest {
		t.Errorf("upload with an Authorization header: %d %s", got.status, got.body)
	}
	a.upload(id, "result.json", `{"success":true}`, "")
	const odd = "/abs//a b/../ü?.txt" // a job may choose any names for its files
	a.upload(id, odd, "odd", "")
	a.finish(id, 1)
	list := rest(t, s, "GET", builds+"/1/artifacts", nil)
	for i, want := range map[int]string{1: `{"success":true}`, 2: "odd"} {
		redirect := send(t, "GET", list.text(t, i, "download_url"), bearer, nil)
		link := redirect.header.Get("Location")
		if got := send(t, "GET", link, "", nil); redirect.status != http.StatusFound || redirect.text(t, "url") != link || string(got.body) != want {
			t.Errorf("%d: %d, %d %s", i, redirect.status, got.status, got.body)
		}
		if got := send(t, "GET", link, bearer, nil); got.status != http.StatusBadRequest {
			t.Errorf("with a token: %d %s", got.status, got.body)
		}
	}
}
