package config

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestSchedule(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0 3 * * *":             "*-*-* 03:00:00",
		" 0   3 * * * ":         "*-*-* 03:00:00",
		"@daily":                "*-*-* 00:00:00",
		"@hourly":               "*-*-* *:00:00",
		"@weekly":               "Sun *-*-* 00:00:00",
		"@yearly":               "*-01-01 00:00:00",
		"*/15 * * * *":          "*-*-* *:00,15,30,45:00",
		"5 1-3,22 * * 1-5":      "Mon,Tue,Wed,Thu,Fri *-*-* 01,02,03,22:05:00",
		"0 0 * * 7":             "Sun *-*-* 00:00:00",
		"0 0 * * 0-7":           "*-*-* 00:00:00",
		"0 0 * * */2":           "Sun,Tue,Thu,Sat *-*-* 00:00:00",
		"0 0 * * sat,SUN":       "Sun,Sat *-*-* 00:00:00",
		"0 4 1,15 jan-mar *":    "*-01,02,03-01,15 04:00:00",
		"0-59 0-23 1-31 1-12 *": "*-*-* *:*:00",
		"10-40/10 2 * * *":      "*-*-* 02:10,20,30,40:00",
	} {
		s, err := ParseSchedule(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		got, err := s.Calendar()
		if got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
		if tool, err := exec.LookPath("systemd-analyze"); err == nil {
			if out, err := exec.CommandContext(t.Context(), tool, "calendar", got).CombinedOutput(); err != nil {
				t.Errorf("systemd does not understand %q: %s", got, out)
			}
		}
	}
	for in, want := range map[string]string{
		"":                   "has 0 fields",
		"0 3 * *":            "has 4 fields",
		"0 3 * * * root x":   "has 7 fields",
		"@reboot":            "has no time of day",
		"60 3 * * *":         `"60" cannot be the minute; write *, or numbers from 0 to 59`,
		"0 24 * * *":         "cannot be the hour",
		"0 3 0 * *":          "cannot be the day of the month",
		"0 3 * 13 *":         "cannot be the month",
		"0 3 * * 8":          "cannot be the day of the week",
		"0 3 * * *;id":       "cannot be the day of the week",
		"0 3-1 * * *":        "cannot be the hour",
		"0 3/2 * * *":        "cannot be the hour",
		"*/0 3 * * *":        "cannot be the minute",
		"*/99 3 * * *":       "cannot be the minute",
		"+1 3 * * *":         "cannot be the minute",
		"1,, 3 * * *":        "cannot be the minute",
		"0 3 * * mon-x":      "cannot be the day of the week",
		"0 3 % * *":          "cannot be the day of the month",
		"0\n3 * * * * * * *": "has 9 fields",
	} {
		if s, err := ParseSchedule(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", in, s, err, want)
		}
	}
	s, err := ParseSchedule("0 3 1 * mon")
	must.Do(t, err)
	if got, err := s.Calendar(); err == nil || !strings.Contains(err.Error(), "set one of them") {
		t.Errorf("%q, %v; want a refusal", got, err)
	}
}
