package check

import (
	"fmt"
	"time"
)

// Result is the outcome of one check.
type Result struct {
	ID       string        `json:"id"`
	Group    string        `json:"group"`
	About    string        `json:"about"`
	Status   Status        `json:"status"` // the worst of the findings
	Detail   string        `json:"detail,omitempty"`
	Findings []Finding     `json:"findings"`
	Took     time.Duration `json:"took_ns"`
}

// Summary returns the worst finding and how many others have the same status.
func (r Result) Summary() string {
	same, first := 0, ""
	for _, f := range r.Findings {
		if f.Status == r.Status {
			if same++; same == 1 {
				first = f.Detail
			}
		}
	}
	switch {
	case same == 0:
		return r.Detail
	case same > 1:
		return fmt.Sprintf("%s (and %d more)", first, same-1)
	}
	return first
}

// Report is the outcome of a run.
type Report struct {
	Schema int      `json:"schema"`
	Fit    bool     `json:"fit"` // nothing failed
	Checks []Result `json:"checks"`
}

// Schema is the version of the JSON that Report marshals to.
const Schema = 1

// Count returns how many checks have a status.
func (r *Report) Count(s Status) (n int) {
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}
