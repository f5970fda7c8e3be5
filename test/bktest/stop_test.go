package bktest

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestStop lists an agent that ends after its job, and gives it no other one.
func TestStop(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, err := s.enroll(registration{Name: "n-gpu0", Tags: []string{"queue=q"}})
	must.Do(t, err)
	as := func(method, path, credentials string) string {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader("{}"))
		r.Header.Set("Authorization", credentials)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		must.Equal(t, 200, w.Code)
		return w.Body.String()
	}
	as("POST", "/v3/connect", "Token "+a.token)
	_, err = s.Submit(NewBuild{Steps: "steps: [{command: x, agents: {queue: q}}]"})
	must.Do(t, err)
	as("POST", "/v3/stop", "Token "+a.token)
	must.Contain(t, as("GET", "/v2/organizations/"+org+"/agents", "Bearer "+DefaultAPIToken), `"connection_state":"stopping"`)
	if got := as("GET", "/v3/ping", "Token "+a.token); strings.Contains(got, "job") {
		t.Error("an agent that stops is offered", got)
	}
}
