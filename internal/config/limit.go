package config

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// NoLimit says that a job may take as long as it likes; "0" says the same.
const NoLimit = "none"

// maxLimit is the longest time limit: systemd and Buildkite know none longer.
const maxLimit = 30 * 24 * time.Hour

// limitForm is a time as people write it, in whole hours, minutes and seconds.
var limitForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,4}m)?([1-9][0-9]{0,6}s)?$`)
})

// Limit is how long a job may take, 0 for any time.
func (j Job) Limit() (time.Duration, error) {
	switch j.TimeLimit {
	case "", NoLimit, "0":
		return 0, nil
	}
	d, err := time.ParseDuration(j.TimeLimit)
	if err != nil || !limitForm().MatchString(j.TimeLimit) || d < time.Minute || d > maxLimit {
		return 0, fmt.Errorf("%q is not a time limit; write one such as 90m, 2h or 1h30m, of a minute or more, or %s", j.TimeLimit, NoLimit)
	}
	return d, nil
}
