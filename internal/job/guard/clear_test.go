package guard

import (
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestStarts: the agent starts at once after one that had a job, and waits after one that
// failed.
func TestStarts(t *testing.T) {
	t.Parallel()
	type life struct {
		lasts time.Duration
		job   bool
	}
	for name, tt := range map[string]struct {
		lives []life
		waits time.Duration // how long the next one waits
		last  bool          // Buildkite accepted the last one
	}{
		"accepted":                  {slices.Repeat([]life{{time.Second, false}}, 9), 20 * time.Second, true},
		"the first":                 {nil, 0, false},
		"jobs":                      {[]life{{time.Second, true}, {time.Second, true}, {time.Second, true}}, 0, false},
		"one failure":               {[]life{{time.Second, false}}, 0, false},
		"two":                       {[]life{{time.Second, false}, {time.Second, false}}, 5 * time.Second, false},
		"four":                      {[]life{{time.Second, false}, {time.Second, false}, {time.Second, false}, {time.Second, false}}, 20 * time.Second, false},
		"nine":                      {slices.Repeat([]life{{time.Second, false}}, 9), time.Minute, false},
		"a job between":             {[]life{{time.Second, false}, {time.Second, false}, {time.Second, true}, {time.Second, false}}, 0, false},
		"idle for long, sent away":  {[]life{{time.Hour, false}, {time.Hour, false}, {time.Hour, false}}, 0, false},
		"a restart by hand at last": {[]life{{time.Second, false}, {time.Second, false}, {2 * time.Minute, false}}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSlotRig(t)
			now := time.Unix(1e9, 0)
			wait := time.Duration(0)
			for i := range len(tt.lives) + 1 {
				var err error
				wait, err = r.countStart(now)
				must.Do(t, err)
				if i == len(tt.lives) {
					break
				}
				now = now.Add(wait)
				if tt.lives[i].job {
					must.Do(t, r.report(slot.WorkedName))
				}
				if tt.last {
					must.Do(t, r.report(slot.RegisteredName))
				}
				now = now.Add(tt.lives[i].lasts)
			}
			must.Equal(t, tt.waits, wait)
		})
	}
}
