package image

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// Trial watches the first jobs after an image has become current.
type Trial struct {
	ImageID string    `json:"image_id"`
	Jobs    int       `json:"jobs"`   // number that must fail in a row
	Failed  int       `json:"failed"` // so far
	Seen    time.Time `json:"seen"`   // outcomes up to here are counted
}

// Verdict is the result of a trial.
type Verdict int

// Verdicts of a trial.
const (
	Undecided Verdict = iota
	Good              // a job succeeded: the image stays
	Bad               // the first jobs all failed: go back
)

// FirstJobs counts one more job that used the image. A single success ends the trial: any
// submission can make its own job fail, but a success shows that the image works.
func FirstJobs(t Trial, o docker.End) (Trial, Verdict) {
	if !o.Time.After(t.Seen) {
		return t, Undecided // from before the trial, or already counted
	}
	t.Seen = o.Time
	switch {
	case o.ExitCode == 0:
		return t, Good
	case o.ExitCode > 128:
		return t, Undecided // a signal: canceled, or out of memory
	}
	if t.Failed++; t.Failed >= t.Jobs {
		return t, Bad
	}
	return t, Undecided
}
