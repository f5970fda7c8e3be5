package doctor

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestNoStream tests what is said where Buildkite cannot send jobs at once, and where it is not asked to.
func TestNoStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const edge, polling = config.DefaultEndpoint, config.PollingEndpoint
	for _, tt := range []struct {
		endpoint, version string
		proto             int
		want              string
	}{
		{edge, "3.138.3", 2, ""},
		{edge, "3.138.3", 1, "agent-edge.buildkite.com through proxy p answers by HTTP/1.1: without HTTP/2, no job is sent at once"},
		{edge, "4.10.1", 1, "agent-edge.buildkite.com through proxy p answers by HTTP/1.1"},
		{edge, "3.127.2", 1, ""}, // agent-version says that it polls
		{polling, "3.138.3", 1, ""},
		{"https://bk.example/v3", "3.138.3", 1, "bk.example through proxy p answers by HTTP/1.1"},
		{"http://127.0.0.1:8899/v3", "3.138.3", 1, ""}, // a stand-in without TLS
	} {
		w.Config.Agent.Endpoint, w.Inventory.Software.Agent.Version = tt.endpoint, tt.version
		at, err := url.Parse(tt.endpoint)
		must.Do(t, err)
		f := w.reached(&http.Response{StatusCode: http.StatusNotFound, ProtoMajor: tt.proto}, at, " through proxy p")
		if (f.Status != OK) != (tt.want != "") || !strings.HasPrefix(f.Detail, tt.want) {
			t.Errorf("%s, %s, HTTP/%d: %v %s; want %q", tt.endpoint, tt.version, tt.proto, f.Status, f.Detail, tt.want)
		}
	}
}

// TestStreamThatDidNotComeUp reads what the agent logs at its start.
func TestStreamThatDidNotComeUp(t *testing.T) {
	t.Parallel()
	const registered, stream = `Successfully registered agent "n-gpu0" with tags []`, "n-gpu0 Ping stream connection established"
	for _, tt := range []struct {
		name, endpoint, version string
		up                      time.Duration
		log                     []string
		want                    bool
	}{
		{"it came up", config.DefaultEndpoint, "3.138.3", time.Minute, []string{registered, "Waiting for instructions...", stream}, false},
		{"it did not", config.DefaultEndpoint, "3.138.3", time.Minute, []string{stream, "Disconnecting...", registered, "Waiting for instructions..."}, true},
		{"it may still", config.DefaultEndpoint, "3.138.3", 10 * time.Second, []string{registered}, false},
		{"the lines are gone", config.DefaultEndpoint, "3.138.3", time.Hour, []string{"Assigned job"}, false},
		{"none is asked for", config.PollingEndpoint, "3.138.3", time.Minute, []string{registered}, false},
		{"too old for one", config.DefaultEndpoint, "3.76.2", time.Minute, []string{registered}, false},
		{"without TLS", "http://127.0.0.1:8899/v3", "3.138.3", time.Minute, []string{registered}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Config.Agent.Endpoint, w.Inventory.Software.Agent.Version = tt.endpoint, tt.version
			w.f.journal[plan.AgentUnit(0)] = tt.log
			must.Equal(t, tt.want, w.polls(t.Context(), w.Plan.Slots[0], tt.up))
		})
	}
}

// TestOldAgentThatMayPoll does not ask for a newer agent where the configuration wants no stream.
func TestOldAgentThatMayPoll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Config.Agent.Endpoint = config.PollingEndpoint
	if what, bad := w.agentSupport("3.127.2"); bad {
		t.Error(what)
	}
}
