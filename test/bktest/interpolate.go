package bktest

import (
	"errors"
	"fmt"

	"github.com/buildkite/interpolate"
)

// maxInterpolated bounds the strings of one expanded pipeline, in bytes.
const maxInterpolated = 8 << 20

// interpolator expands variables with the agent's own library.
type interpolator struct {
	env  map[string]string
	used int // bytes written so far
}

// value expands every string of a decoded document, keys included.
func (in *interpolator) value(v any, depth int) (any, error) {
	if depth > 32 {
		return nil, errors.New("nested deeper than 32 levels")
	}
	switch v := v.(type) {
	case string:
		return in.expand(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			x, err := in.value(e, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			key, err := in.expand(k)
			if err != nil {
				return nil, err
			}
			if out[key], err = in.value(e, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

// expand expands a string as a pipeline upload does.
func (in *interpolator) expand(s string) (string, error) {
	out, err := interpolate.Interpolate(interpolate.NewMapEnv(in.env), s)
	if err != nil {
		return "", fmt.Errorf("expand %.60q: %w; write $$ for a dollar sign", s, err)
	}
	if in.used += len(out); in.used > maxInterpolated {
		return "", fmt.Errorf("the pipeline is longer than %d bytes once its variables are put in", maxInterpolated)
	}
	return out, nil
}
