package guard

import (
	"strings"
	"testing"
)

func TestPullOfKeptImage(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kept, query string
		engine      bool // the engine is asked to pull
	}{
		"nothing is kept":    {"", "fromImage=a.b%2Fimg&tag=1", true},
		"the kept one":       {"a.b/img:1", "fromImage=a.b%2Fimg&tag=1", false},
		"for a platform":     {"a.b/img:1", "fromImage=a.b%2Fimg&tag=1&platform=linux%2Farm64", false},
		"in one word":        {"a.b/img:1", "fromImage=a.b%2Fimg:1", false},
		"of Docker's own":    {"img", "fromImage=docker.io%2Flibrary%2Fimg&tag=latest", false},
		"another tag":        {"a.b/img:1", "fromImage=a.b%2Fimg&tag=2", true},
		"another registry":   {"a.b/img:1", "fromImage=a.c%2Fimg&tag=1", true},
		"by digest":          {"a.b/img:1", "fromImage=a.b%2Fimg&tag=sha256:" + strings.Repeat("a", 64), true},
		"one that is absent": {"a.b/absent:1", "fromImage=a.b%2Fabsent&tag=1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(r *rig) { r.policy.KeptImage = row.kept })
			status, answer := r.ask(t, "POST", "/v1.45/images/create?"+row.query, "")
			if status != 200 || strings.Contains(answer, "image.auto_update") == row.engine {
				t.Errorf("answers %d %s", status, answer)
			}
			r.engine.mu.Lock()
			defer r.engine.mu.Unlock()
			if got := strings.Contains(strings.Join(r.engine.requests, " "), "/images/create?"); got != row.engine {
				t.Errorf("the engine was asked %q", r.engine.requests)
			}
		})
	}
}
