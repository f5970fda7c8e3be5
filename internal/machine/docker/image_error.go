package docker

import (
	"errors"
	"strings"

	"github.com/distribution/reference"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// PullError is a pull that failed. The engine, which is in the node's own network, quotes in its error the page that
// a server answers with, and the address to which it leads: what this says has only the registry's name and the
// status.
type PullError struct {
	ref   string
	Whole error // for the node's log
}

// Unwrap returns ErrMissing, ErrRefused or ErrDiskFull, or nil.
func (e *PullError) Unwrap() error {
	for _, kind := range []error{ErrDiskFull, ErrMissing, ErrRefused} {
		if errors.Is(e.Whole, kind) {
			return kind
		}
	}
	return nil
}

func (e *PullError) Error() string {
	whole, detail := e.Whole.Error(), ""
	switch status := statusForm().FindStringSubmatch(whole); {
	case status != nil:
		detail = " (HTTP status " + status[1] + status[2] + ")"
	case strings.Contains(whole, "toomanyrequests"):
		detail = " (too many pulls)"
	case strings.Contains(whole, "no matching manifest"):
		detail = " (it has none for this machine)"
	}
	if kind := e.Unwrap(); kind != nil {
		return "pull " + e.ref + ": " + kind.Error() + detail
	}
	registry := "its registry"
	if named, err := reference.ParseNormalizedNamed(e.ref); err == nil {
		registry = reference.Domain(named)
	}
	return "pull " + e.ref + ": " + registry + " does not give it" + detail + "; the node's log says more, for its operator"
}

// statusForm finds an HTTP status where engines write it, before what they quote.
var statusForm = lazy.Regexp(`(?:HTTP |status: |status code )([1-5][0-9]{2})\b|: ([1-5][0-9]{2}) [A-Z]`)
