package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/results"
	"github.com/gpu-mode/kbnode/internal/submit"
)

// The user who submits matches no one: kernelbot's user IDs are numbers.
const (
	userID   = "kbnode-e2e"
	userName = "kbnode e2e"
)

// store saves the right submission in the database, checks that all of it is there, and removes
// it again if o.Cleanup is set, even after an error.
func (r *Report) store(ctx context.Context, o Options, out submit.Outcome) {
	check := func(name string, err error, saw string) bool {
		c := Check{Part: Database, Name: name, Verdict: OK, Saw: saw}
		if err != nil {
			c.Verdict, c.Saw = Failed, err.Error()
		}
		r.add(c)
		return err == nil
	}
	record, err := o.record(out, time.Now())
	if err != nil {
		r.add(Check{Part: Database, Name: "stored", Verdict: Untried, Saw: err.Error()})
		return
	}
	stored, err := o.Store.Save(ctx, record)
	if stored.Name != "" {
		r.Stored = &stored
	}
	if check("stored", err, fmt.Sprintf("leaderboard %s, submission %d with %d runs", record.Leaderboard, stored.Submission, len(stored.Runs))) {
		check("as it was stored", o.Store.Verify(ctx, stored, record), "every column matches what was sent")
	}
	if !o.Cleanup || r.Stored == nil {
		return
	}
	if check("removed", o.Store.Remove(context.WithoutCancel(ctx), stored), "no rows are left") {
		r.Stored = nil
	}
}

// record returns what kernelbot would store for the right submission.
func (o Options) record(out submit.Outcome, now time.Time) (results.Record, error) {
	right := o.Problem.Submissions[0]
	if out.Verdict != submit.Passed {
		return results.Record{}, fmt.Errorf("%s has no result to store", right.File)
	}
	gpu := strings.ToUpper(cmp.Or(o.GPU, o.Queue))
	runs, err := results.RunsOf(out.Raw, o.Problem.Task.RankingBy, gpu)
	return results.Record{
		Leaderboard: o.RunID, Description: "made by kbnode e2e", Task: json.RawMessage(o.Problem.Task.Definition()),
		GPU: gpu, UserID: userID, UserName: userName, File: right.File, Code: right.Text, Submitted: now, Runs: runs,
	}, err
}
