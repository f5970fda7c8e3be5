package guard

import (
	"context"
	"errors"
	"net/http"
)

// toldByRoot accepts reports of root only: of agent-exec, before it becomes the agent. No
// process of the slot's user becomes root in the agent's unit.
func (g *guard) toldByRoot(stage func(context.Context, int) (string, error)) func(*call) error {
	told := g.told(stage, func(context.Context) {})
	return func(c *call) error {
		if peer, ok := c.r.Context().Value(peerKey{}).(*peerConn); ok && !peer.root {
			return forbid("only the agent's unit may do this, before the agent starts")
		}
		return told(c)
	}
}

// told answers a report of the slot's agent, and then calls after. What was begun goes on if the
// agent's hook is killed.
func (g *guard) told(stage func(context.Context, int) (string, error), after func(context.Context)) func(*call) error {
	return func(c *call) error {
		peer, ok := c.r.Context().Value(peerKey{}).(*peerConn)
		if !ok {
			return errors.New("cannot identify the caller")
		}
		g.cleaner.mu.Lock()
		defer g.cleaner.mu.Unlock()
		defer g.trim()
		if err := c.r.Context().Err(); err != nil {
			return err // the client went away while it waited
		}
		ctx := context.WithoutCancel(c.r.Context())
		why, err := stage(ctx, peer.pid)
		if err != nil {
			return err
		}
		if why != "" {
			return refusal{http.StatusConflict, why}
		}
		if said := g.cleaner.said; said != "" {
			g.cleaner.said = ""
			err = answer(c.w, map[string]string{"message": said})
		} else {
			c.w.WriteHeader(http.StatusNoContent)
		}
		if err = errors.Join(err, http.NewResponseController(c.w).Flush()); err != nil {
			g.log.Debug("answer not sent", "err", err)
		}
		after(ctx)
		return nil
	}
}
