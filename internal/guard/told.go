package guard

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/noise"
)

// caller returns the process that sends a request.
func caller(c *call) (*peerConn, error) {
	peer, ok := c.r.Context().Value(peerKey{}).(*peerConn)
	if !ok {
		return nil, errors.New("cannot identify the caller")
	}
	return peer, nil
}

// agentReady answers the agent's unit, which is about to become the agent. Only root may ask: no
// process of the slot's user becomes root in the agent's unit.
func (g *guard) agentReady(c *call) error {
	peer, err := caller(c)
	if err != nil {
		return err
	}
	if !peer.root {
		return forbid("only the agent's unit may do this, before the agent starts; leave it to kbnode")
	}
	parked, err := g.keeper.Ready(c.r.Context(), peer.pid)
	if parked != "" {
		return refusal{http.StatusConflict, parked}
	}
	return reported(c, err)
}

// agentRegistered answers the agent, which Buildkite has accepted.
func (g *guard) agentRegistered(c *call) error {
	peer, err := caller(c)
	if err != nil {
		return err
	}
	return reported(c, g.keeper.Registered(c.r.Context(), peer.pid))
}

func reported(c *call, err error) error {
	if wrong, ok := errors.AsType[*keeper.CallerError](err); ok {
		return forbid("%s", wrong.Text)
	}
	if err == nil {
		c.w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// recordText is the text of node.json.
func recordText(rec noise.Record) (string, error) {
	text, err := json.MarshalIndent(rec, "", "  ")
	return string(text) + "\n", err
}
