package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
)

// decoded decodes the messages of a body that the client does not decode itself.
type decoded struct{ io.ReadCloser }

// JSONMessages yields messages until the body ends. A truncated body is an error.
func (d decoded) JSONMessages(context.Context) iter.Seq2[jsonstream.Message, error] {
	return func(yield func(jsonstream.Message, error) bool) {
		dec := json.NewDecoder(d)
		for {
			var m jsonstream.Message
			err := dec.Decode(&m)
			if errors.Is(err, io.EOF) || !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// maxEnds bounds what Ends returns: the engine remembers a few hundred events.
const maxEnds = 1024

// End is a container that has ended.
type End struct {
	ID       string
	Image    string // as written when the container was made
	ExitCode int
	Time     time.Time
}

// Ends returns the containers with this label that ended between since and now, as far as the
// engine remembers, oldest first.
func (e *Engine) Ends(ctx context.Context, label string, since time.Time) ([]End, error) {
	ctx, cancel := context.WithTimeout(ctx, infoDeadline)
	defer cancel()
	res := e.api.Events(ctx, client.EventsListOptions{
		Since: since.Format(time.RFC3339Nano), Until: time.Now().Format(time.RFC3339Nano),
		Filters: client.Filters{}.Add("type", "container").Add("event", "die").Add("label", label),
	})
	var ends []End
	for {
		select {
		case m := <-res.Messages:
			code, err := strconv.Atoi(m.Actor.Attributes["exitCode"])
			if err == nil && len(ends) < maxEnds {
				ends = append(ends, End{ID: m.Actor.ID, Image: m.Actor.Attributes["image"], ExitCode: code, Time: time.Unix(0, m.TimeNano)})
			}
		case err := <-res.Err:
			if err == nil || errors.Is(err, io.EOF) {
				return ends, nil
			}
			return nil, e.wrap("ask Docker which containers have ended", err)
		case <-ctx.Done():
			return nil, e.wrap("ask Docker which containers have ended", ctx.Err())
		}
	}
}
