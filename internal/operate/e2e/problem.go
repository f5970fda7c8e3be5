package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/results"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
)

// DefaultProblem is the example that needs no GPU.
const DefaultProblem = "prefix_python"

// Kind is the kind of a submission, which decides how it should come out.
type Kind string

// Kinds of submissions. Their file names begin with these.
const (
	Right Kind = "submission"
	Wrong Kind = "wrong"
	Cheat Kind = "cheat" // may pass mode test, which makes one call per case
)

var order = []Kind{Right, Wrong, Cheat}

// Submission is one submission to a problem.
type Submission struct {
	File string
	Kind Kind
	Text string
}

// Problem is a problem in kernelbot's format with submissions beside its task.yml.
type Problem struct {
	Task        *task.Task
	Submissions []Submission // the right one first, then one or more that should fail
}

// Load reads a problem, by its directory or its name, as task.Find does.
func Load(name string) (*Problem, error) {
	t, err := task.Find(name)
	if err != nil {
		return nil, err
	}
	p, dir := &Problem{Task: t}, t.FS()
	name = t.Name()
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("read problem %s: %w", name, err)
	}
	ext := filepath.Ext(t.Submission)
	for _, e := range entries {
		stem, is := strings.CutSuffix(e.Name(), ext)
		i := slices.IndexFunc(order, func(k Kind) bool { return stem == string(k) || k != Right && strings.HasPrefix(stem, string(k)) })
		if !is || i < 0 || e.IsDir() { // ReadSubmission refuses what is no file, and reads links
			continue
		}
		text, err := t.ReadSubmission(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read submission: %w", err)
		}
		p.Submissions = append(p.Submissions, Submission{e.Name(), order[i], text})
	}
	slices.SortFunc(p.Submissions, func(a, b Submission) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), strings.Compare(a.File, b.File))
	})
	switch {
	case len(p.Submissions) == 0 || p.Submissions[0].Kind != Right:
		return nil, fmt.Errorf("problem %s has no right submission; write one to %s%s", name, Right, ext)
	case len(p.Submissions) == 1:
		return nil, fmt.Errorf("problem %s has no submission that should fail; write one to %s%s or %s%s", name, Wrong, ext, Cheat, ext)
	}
	return p, nil
}

// userID matches no one: kernelbot's user IDs are numbers.
const userID = "kbnode-e2e"

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
	if !check("stored", err, fmt.Sprintf("leaderboard %s, submission %d with %d runs", record.Leaderboard, stored.Submission, len(stored.Runs))) {
		return
	}
	check("as it was stored", o.Store.Verify(ctx, stored, record), "every column matches what was sent")
	if !o.Cleanup || !check("removed", o.Store.Remove(context.WithoutCancel(ctx), stored), "no rows are left") {
		r.Stored = &stored
	}
}

func (o Options) record(out submit.Outcome, now time.Time) (results.Record, error) {
	right := o.Problem.Submissions[0]
	if out.Verdict != submit.Passed {
		return results.Record{}, fmt.Errorf("%s has no result to store", right.File)
	}
	gpu := strings.ToUpper(cmp.Or(o.GPU, o.Queue))
	runs, err := results.RunsOf(out.Raw, o.Problem.Task.RankingBy, gpu)
	return results.Record{
		Leaderboard: o.RunID, Task: json.RawMessage(o.Problem.Task.Definition()),
		GPU: gpu, UserID: userID, File: right.File, Code: right.Text, Submitted: now, Runs: runs,
	}, err
}
