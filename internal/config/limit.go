package config

import (
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// NoLimit means that a job may take any time; so does "0".
const NoLimit = "none"

// maxLimit is the longest time limit in seconds, 30 days.
const maxLimit = 30 * 24 * 3600

// limitForm matches a time as people write it, in whole hours, minutes and seconds.
var limitForm = lazy.Regexp(`^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,4}m)?([1-9][0-9]{0,6}s)?$`)

// Limit returns how long a job may take, in seconds; 0 for any time.
func (j Job) Limit() (seconds int64, err error) {
	switch j.TimeLimit {
	case "", NoLimit, "0":
		return 0, nil
	}
	if limitForm().MatchString(j.TimeLimit) {
		limit, _ := time.ParseDuration(j.TimeLimit) // it reads whatever limitForm matches
		seconds = int64(limit / time.Second)
	}
	if seconds < 60 || seconds > maxLimit {
		return 0, fmt.Errorf("%q is not a time limit; write at least a minute, such as 90m, 2h or 1h30m, or %s", j.TimeLimit, NoLimit)
	}
	return seconds, nil
}
