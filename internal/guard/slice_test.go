package guard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// TestSlowEngine: a busy engine is asked again, one that refuses is not.
func TestSlowEngine(t *testing.T) {
	t.Parallel()
	slow := fmt.Errorf("ask: %w", context.DeadlineExceeded)
	for name, row := range map[string]struct {
		errs  []error
		asked int
	}{
		"slow twice": {[]error{slow, slow, nil}, 3},
		"hangs":      {[]error{slow, slow, slow, slow, slow}, engineAsks},
		"refuses":    {[]error{docker.ErrAbsent, nil}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			c := engineCheck{ask: func(context.Context) (docker.Info, error) {
				asked++
				return docker.Info{CgroupDriver: "systemd", CgroupVersion: "2"}, row.errs[asked-1]
			}}
			if _, err := c.ok(t.Context(), time.Now()); !errors.Is(err, row.errs[row.asked-1]) || asked != row.asked {
				t.Errorf("asked %d times: %v", asked, err)
			}
		})
	}
}
