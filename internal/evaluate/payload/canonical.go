package payload

import "slices"

// Labels are members that backends may add: who sent the submission, when, and its names. No runner reads them.
var Labels = []string{"file_name", "leaderboard", "run_id", "submission_id", "submission_name", "submission_time", "user_id", "user_name"}

// Canonical returns a payload as text, without Labels. Payloads that a runner could tell apart have different ones: it
// keeps the order of members, and all that Python has different values for.
func Canonical(o *Object) string {
	rest := &Object{}
	for key, v := range o.All() {
		if !slices.Contains(Labels, key) {
			rest.Set(key, v)
		}
	}
	return JSON(rest)
}
