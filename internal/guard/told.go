package guard

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// caller returns the process that sends a request.
func caller(c *call) (*peerConn, error) {
	peer, ok := c.r.Context().Value(peerKey{}).(*peerConn)
	if !ok {
		return nil, errors.New("cannot identify the caller")
	}
	return peer, nil
}

// report answers a report of the slot's agent. Only root may report that the agent is about to
// start: no process of the slot's user becomes root in the agent's unit.
func (g *guard) report(c *call) error {
	peer, err := caller(c)
	if err != nil {
		return err
	}
	path := c.r.URL.Path
	if path == slot.ReadyPath && !peer.root {
		return forbid("only the agent's unit may do this, before the agent starts; leave it to kbnode")
	}
	defer g.trim()
	parked, err := g.keeper.Report(c.r.Context(), path, peer.pid, func(string) {
		c.w.WriteHeader(http.StatusNoContent)
		if err := http.NewResponseController(c.w).Flush(); err != nil {
			g.log.Debug("answer not sent", "err", err)
		}
	})
	if parked != "" {
		return refusal{http.StatusConflict, parked}
	}
	return refused(err)
}

// recordText is the text of node.json.
func recordText(rec noise.Record) (string, error) {
	text, err := json.MarshalIndent(rec, "", "  ")
	return string(text) + "\n", err
}

// refused returns the refusal that an error of the keeper means.
func refused(err error) error {
	if wrong, ok := errors.AsType[*keeper.CallerError](err); ok {
		return forbid("%s", wrong.Text)
	}
	if errors.Is(err, keeper.ErrNoRecord) {
		return refusal{http.StatusNotFound, "kbnode: " + err.Error()}
	}
	return err
}
