package guard

import (
	"slices"
	"testing"
	"time"
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
	}{
		"the first":                 {nil, 0},
		"jobs":                      {[]life{{time.Second, true}, {time.Second, true}, {time.Second, true}}, 0},
		"one failure":               {[]life{{time.Second, false}}, 0},
		"two":                       {[]life{{time.Second, false}, {time.Second, false}}, 5 * time.Second},
		"four":                      {[]life{{time.Second, false}, {time.Second, false}, {time.Second, false}, {time.Second, false}}, 20 * time.Second},
		"nine":                      {slices.Repeat([]life{{time.Second, false}}, 9), time.Minute},
		"a job between":             {[]life{{time.Second, false}, {time.Second, false}, {time.Second, true}, {time.Second, false}}, 0},
		"idle for long, sent away":  {[]life{{time.Hour, false}, {time.Hour, false}, {time.Hour, false}}, 0},
		"a restart by hand at last": {[]life{{time.Second, false}, {time.Second, false}, {2 * time.Minute, false}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1e9, 0)
			var s starts
			pid := 100
			for _, l := range tt.lives {
				s.next(pid, now)
				for s.wait(now) != "" {
					now = now.Add(time.Second)
				}
				s.worked = l.job
				now = now.Add(l.lasts)
				pid++
			}
			if !s.next(pid, now) || s.next(pid, now) {
				t.Error("who asks for the first time is not told from who asks again")
			}
			if got := max(0, s.until.Sub(now)); got != tt.waits {
				t.Errorf("waits %v, want %v", got, tt.waits)
			}
			if why := s.wait(now); (why == "") != (tt.waits == 0) {
				t.Errorf("says %q", why)
			}
		})
	}
}
