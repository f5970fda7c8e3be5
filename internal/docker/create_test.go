package docker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestImageConfig reads what an engine says of an image, and no more of it than is bounded.
func TestImageConfig(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		status int
		text   string
		want   error
	}{
		"ghcr.io/a/b:1": {200, `{"Config": {"User": "1000", "WorkingDir": "/w", "Volumes": {"/data": {}}}}`, nil},
		"absent":        {404, `{"message": "No such image"}`, ErrNotFound},
		"large":         {200, `{"Config": {"User": "` + strings.Repeat("x", maxImageConfig) + `"}}`, ErrTooLarge},
		"broken":        {500, `{"message": "out of order"}`, errors.ErrUnsupported}, // an error of no kind
	}
	e := engineOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answers[strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/images/"), "/json")]
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.text) // the reader hangs up
	}))
	for image, a := range answers {
		got, err := e.ImageConfig(t.Context(), image)
		switch {
		case a.want == nil:
			if _, has := got.Volumes["/data"]; err != nil || got.User != "1000" || got.WorkingDir != "/w" || !has {
				t.Errorf("%s: %+v, %v", image, got, err)
			}
		case image == "broken":
			if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "out of order") {
				t.Errorf("%s: %v", image, err)
			}
		case !errors.Is(err, a.want):
			t.Errorf("%s: %v, want %v", image, err, a.want)
		}
	}
}
