package image

import "time"

// Trial watches the first jobs of an image that has become current.
type Trial struct {
	ImageID string    `json:"image_id"`
	Jobs    int       `json:"jobs"`   // that must fail in a row
	Failed  int       `json:"failed"` // so far
	Seen    time.Time `json:"seen"`   // outcomes up to here are counted
}

// Outcome is the end of one job's container.
type Outcome struct {
	Image    string // as the pipeline named it
	ExitCode int
	Time     time.Time
}

// Verdict is what a trial has come to.
type Verdict int

// Verdicts of a trial.
const (
	Undecided Verdict = iota
	Good              // a job ended well: the image stays
	Bad               // the first jobs all failed: go back
)

// FirstJobs counts one more job that used the image. A single one that ends well
// ends the trial: any submission can make its own job fail, and one that ends
// well shows that the image is not why.
func FirstJobs(t Trial, o Outcome) (Trial, Verdict) {
	if !o.Time.After(t.Seen) {
		return t, Undecided // of the time before, or counted
	}
	t.Seen = o.Time
	switch {
	case o.ExitCode == 0:
		return t, Good
	case o.ExitCode > 128:
		return t, Undecided // a signal: cancelled, or out of its memory
	}
	if t.Failed++; t.Failed >= t.Jobs {
		return t, Bad
	}
	return t, Undecided
}
