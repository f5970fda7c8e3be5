package standin

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

var service = Service{Endpoint: "http://buildkite.test/v3", AgentVersion: "3.138.3"}

// agents returns what the API lists: name, state by the tag, and note.
func agents(t *testing.T, s *bktest.Server) map[string]string {
	t.Helper()
	c, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire()})
	must.Do(t, err)
	r, _, err := c.ReadQueues(t.Context(), "kbnode")
	must.Do(t, err)
	found := map[string]string{}
	for _, q := range r.Queues {
		for _, a := range q.Agents {
			found[a.Name] += a.State + ": " + a.Note
		}
	}
	return found
}

func absence(name, state, reason string) Absence {
	return Absence{Agent: name, Tags: []string{"queue=b200", "node=n", "slots=2"}, State: state, Reason: reason}
}

// TestKeeper follows two slots out of service and back: what Buildkite lists, that no job comes to a stand-in, and that
// nothing is left at the end.
func TestKeeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{})
		k := New(Options{Network: s.Wire(), Token: func() (string, error) { return bktest.DefaultAgentToken, nil }, Log: slog.New(slog.DiscardHandler)})
		k.Update(service, []Absence{absence("n-gpu0", "drained", "by operator: new fan"), absence("n-gpu1", "parked", "the GPU is lost\x1b[2J")})
		time.Sleep(time.Minute)
		must.Equal(t, map[string]string{"n-gpu0": "drained: by operator: new fan", "n-gpu1": "parked: the GPU is lost"}, agents(t, s))
		// It stays for days, longer than a pause lasts, and after a change.
		time.Sleep(50 * time.Hour)
		must.Equal(t, true, s.Requests()["POST /v3/register"] >= 4) // two days of two slots
		// The API tells since when: also after the first of two drains has ended, and again after another drain.
		begun, later := time.Now().Add(-time.Hour).UTC().Truncate(time.Second), time.Now().UTC().Truncate(time.Second)
		for i, since := range []time.Time{begun, begun, later} {
			a := absence("n-gpu0", "drained", "x")
			a.Since = []time.Time{begun, later, later}[i]
			if i == 2 { // it served
				k.Update(service, []Absence{absence("n-gpu1", "parked", "y")})
			}
			k.Update(service, []Absence{a, absence("n-gpu1", "parked", "y")})
			time.Sleep(time.Minute)
			c, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire()})
			must.Do(t, err)
			r, _, err := c.ReadQueues(t.Context(), "kbnode")
			must.Do(t, err)
			must.Equal(t, since, r.Queues[0].Nodes[0].Out[0].Since)
		}
		// Another reason is the note of the same agent, after some minutes at most.
		before := s.Requests()["POST /v3/register"]
		for mib := range 100 {
			k.Update(service, []Absence{absence("n-gpu1", "parked", fmt.Sprintf("%d MiB in use", mib))})
			time.Sleep(5 * time.Second)
		}
		time.Sleep(noteTime)
		must.Equal(t, map[string]string{"n-gpu1": "parked: 99 MiB in use"}, agents(t, s))
		must.Equal(t, before, s.Requests()["POST /v3/register"])
		// A slot that is out of service for seconds only gets none.
		for range 100 {
			k.Update(service, nil)
			time.Sleep(5 * time.Second)
			k.Update(service, []Absence{absence("n-gpu1", "failed", "")})
			time.Sleep(5 * time.Second)
		}
		must.Equal(t, before, s.Requests()["POST /v3/register"])
		k.Update(service, nil)
		time.Sleep(time.Minute)
		must.Equal(t, map[string]string{}, agents(t, s))
		k.Update(service, []Absence{absence("n-gpu1", "failed", "")})
		time.Sleep(time.Minute)
		k.Close()
		must.Equal(t, map[string]string{}, agents(t, s))
	})
}

// TestRetries has Buildkite refuse, fail and forget: a stand-in comes back by itself, and says why it did not, once.
func TestRetries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault bktest.Fault
		token error
		log   string
		shown string // "" is with its reason
	}{
		"a token that is refused": {fault: bktest.Fault{Route: "POST /v3/register", Status: http.StatusUnauthorized, Times: 3}, log: "401 Unauthorized"},
		"no pause":                {fault: bktest.Fault{Route: "POST /v3/pause", Status: http.StatusInternalServerError, Times: 2}, log: "pause: Buildkite says 500"},
		"a lost agent":            {fault: bktest.Fault{Route: "POST /v3/heartbeat", Status: http.StatusUnauthorized, Times: 1}, log: "heartbeat: Buildkite says 401"},
		"no token":                {token: errors.New("read agent token"), log: "read agent token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := bktest.New(bktest.Options{})
				if tt.fault.Route != "" {
					s.Inject(tt.fault)
				}
				var log strings.Builder
				began := time.Now()
				k := New(Options{Network: s.Wire(), Log: slog.New(slog.NewTextHandler(&log, nil)), Token: func() (string, error) {
					if time.Since(began) < time.Minute && tt.token != nil {
						return "", tt.token
					}
					return bktest.DefaultAgentToken, nil
				}})
				k.Update(service, []Absence{absence("n-gpu0", "drained", "x")})
				time.Sleep(15 * time.Minute)
				must.Equal(t, map[string]string{"n-gpu0": cmp.Or(tt.shown, "drained: x")}, agents(t, s))
				k.Close()
				if n := strings.Count(log.String(), tt.log); n != 1 || strings.Contains(log.String(), bktest.DefaultAgentToken) {
					t.Errorf("said %d times: %s", n, log.String())
				}
			})
		})
	}
}
