package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"

	"github.com/moby/moby/api/types/jsonstream"
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
