package slot

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
)

// Where a slot's agent reports its progress to the slot's service. The answer is 204, or 409 with the
// reason why the slot is parked.
const (
	ReadyPath      = "/kbnode/ready"      // the agent is about to start; only root may send this
	RegisteredPath = "/kbnode/registered" // Buildkite accepted the agent
)

// Client returns a client of the service that listens on a socket. It asks for any host.
func Client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

// Message returns the sentence of a service's answer.
func Message(resp *http.Response) string {
	var answer struct {
		Message string `json:"message"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || json.Unmarshal(text, &answer) != nil || answer.Message == "" {
		return "the slot's service says " + resp.Status
	}
	return strings.TrimPrefix(answer.Message, "kbnode: ")
}
