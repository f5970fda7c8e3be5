package text

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestParseUntil(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	must.Do(t, err)
	now := time.Date(2026, 3, 28, 17, 30, 10, 0, zone) // the night before clocks change
	for s, want := range map[string]string{
		"8h": "2026-03-29T01:30:10+01:00", "3d": "2026-03-31T18:30:10+02:00", "1d12h": "2026-03-30T06:30:10+02:00", "18:00": "2026-03-28T18:00:00+01:00",
		"17:30": "2026-03-29T17:30:00+02:00", "2026-12-24": "2026-12-24T00:00:00+01:00", "2026-07-01T18:00": "2026-07-01T18:00:00+02:00",
		"2026-07-01 18:00:05": "2026-07-01T18:00:05+02:00", "2026-07-01T18:00:00Z": "2026-07-01T18:00:00Z",
		"": "is not a time", "0d": "is over", "-8h": "is over", "2026-03-28": "2026-03-28 00:00 CET is over; write a time to come, such as 8h, 18:00 or 2026-03-29",
		"tomorrow": "is not a time", "24:00": "is not a time", "2026-02-30": "is not a time", "99999d": "ten years", "3d3d": "is not a time", "9999-01-01": "ten years",
	} {
		got, err := ParseUntil(s, now)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("%q: got %s, %v; want %s", s, got.Format(time.RFC3339), err, want)
		}
	}
}
