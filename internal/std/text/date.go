package text

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// dateLayouts are the forms in which people write dates.
var dateLayouts = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly}

// ParseDate reads a date, a date and time, or RFC 3339. A time without a zone is in loc, and a date is its beginning.
func ParseDate(s string, loc *time.Location) (time.Time, error) {
	for _, layout := range dateLayouts {
		if t, err := time.ParseInLocation(layout, s, loc); err == nil && t.Year() >= 1970 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.60q is not a date; write one such as 2026-12-31 or 2026-12-31T18:00", s)
}

// IsDate reports whether ParseDate reads s.
func IsDate(s string) bool {
	_, err := ParseDate(s, time.UTC)
	return err == nil
}

// farAway bounds what ParseUntil accepts: what is later was not meant.
const farAway = 10 * 366 * 24 * time.Hour

// ParseUntil reads a time that is to come as ParseDate does, as a time of day, or as a duration from now.
func ParseUntil(s string, now time.Time) (time.Time, error) {
	t, err := ParseDate(s, now.Location())
	if err != nil {
		t, err = fromNow(s, now)
	}
	switch {
	case err != nil:
		return t, fmt.Errorf("%.60q is not a time; write how long, such as 8h or 3d, or when, such as 18:00, 2026-12-24 or 2026-12-24T18:00", s)
	case !t.After(now):
		return t, fmt.Errorf("%s is over; write a time to come, such as 8h, 18:00 or %s", t.Format("2006-01-02 15:04 MST"), now.AddDate(0, 0, 1).Format(time.DateOnly))
	case t.Sub(now) > farAway:
		return t, errors.New("that is more than ten years from now; write a time before that, or none")
	}
	return t, nil
}

func fromNow(s string, now time.Time) (time.Time, error) {
	if at, err := time.Parse("15:04", s); err == nil {
		t := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, now.Location())
		if !t.After(now) {
			t = time.Date(now.Year(), now.Month(), now.Day()+1, at.Hour(), at.Minute(), 0, 0, now.Location())
		}
		return t, nil
	}
	rest, days := s, time.Duration(0)
	if count, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(count, 10, 17)
		if err != nil {
			return now, err
		}
		rest, days = cmp.Or(after, "0"), time.Duration(n)*24*time.Hour
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return now, err
	}
	return now.Add(days + d).Truncate(time.Second), nil
}
