package runner

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
)

// longest is the longest time limit of a step in Buildkite, and so what a payload without limits may take.
const longest = 7 * 24 * time.Hour

// MaxTime returns how long the programs of a payload may take together, a week at most. It is an error if
// a runner would refuse the payload.
func MaxTime(o *payload.Object) (time.Duration, error) {
	c, err := parseConfig(o)
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, s := range c.steps() {
		sum += max(s.limit.seconds, 0)
		if c.lang == "cu" {
			sum += compileLimit.seconds + toolLimit
		}
		if s.mode == "profile" {
			sum += reportLimit
		}
	}
	if c.lang == "py" { // once in a job for each submission
		sum += compileLimit.seconds * float64(len(c.both()))
	}
	if sum >= longest.Seconds() { // perhaps more than a Duration can be
		return longest, nil
	}
	return time.Duration(sum * float64(time.Second)), nil
}
