package submit

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// compareKey is the key of a build's meta-data with Job.Compare, so that others can show what it says. Anyone who creates
// builds may have written it.
const compareKey = "compare"

const (
	maxComparison = 4096 // bytes of a Comparison in meta-data
	maxLabel      = 100  // characters of a name there
)

// Comparison is what a job compares. Its texts may be anyone's.
type Comparison struct {
	Problem  string    `json:"problem"`
	Files    [2]string `json:"files"`
	Ranking  string    `json:"ranking_by"`
	Rounds   int       `json:"rounds"`
	Untested bool      `json:"untested,omitempty"` // the problem has no tests
}

// String returns it as it is in meta-data: without the directories of files, which are no one else's business.
func (c *Comparison) String() string {
	sent := *c
	for i, path := range c.Files { // Label keeps the directories of files with the same name
		sent.Files[i] = filepath.Base(path)
	}
	sent.Files, sent.Problem = compare.Label(sent.Files, maxLabel), text.Line(c.Problem, maxLabel)
	body, _ := json.Marshal(sent) // texts and numbers
	return string(body)
}

// comparisonOf reads a comparison from meta-data. It returns nil if there is none.
func comparisonOf(body string) *Comparison {
	var c Comparison
	if len(body) > maxComparison || json.Unmarshal([]byte(body), &c) != nil || c.Rounds < result.MinRounds || c.Rounds > result.MaxRounds {
		return nil
	}
	return &c
}

// ComparisonOf returns what the job of a payload compares, or nil.
func ComparisonOf(o *payload.Object) *Comparison {
	text := func(key string) string {
		v, _ := o.Get(key)
		return payload.Str(v)
	}
	rounds, _ := strconv.Atoi(text("rounds"))
	if text("mode") != result.ModeCompare || rounds < result.MinRounds || rounds > result.MaxRounds { // which the runner refuses
		return nil
	}
	tests, _ := o.Get("tests")
	list, _ := tests.([]payload.Value)
	return &Comparison{Problem: "a payload", Files: [2]string{"first", "second"}, Ranking: text("ranking_by"), Rounds: rounds, Untested: len(list) == 0}
}

// names are those of the files, for people.
func (c *Comparison) names() [2]string { return compare.Label(c.Files, 30) }

// compare fills in the comparison of a run that has a result, and returns the verdict and the reason.
func (r *run) compare(v Verdict, reason string) (Verdict, string) {
	c := r.job.Compare
	// The files' names as in meta-data, so that all who look at the build see the same. Only who sent it sees directories, where
	// nothing else tells the files apart.
	report := &compare.Report{Problem: c.Problem, Files: compare.Label(c.Files, maxLabel), Ranking: c.Ranking}
	odd, unknown := r.implausible()
	err := report.Read(r.out.Result, c.Rounds, !c.Untested, odd)
	if wrong, ok := errors.AsType[*compare.Failure](err); ok {
		if v == NotPassed {
			reason = fmt.Sprintf("%s did not pass %s, so the files are not compared", c.names()[wrong.Side], wrong.Where())
		}
		return v, reason
	}
	if len(report.Rounds) > 0 {
		r.out.Comparison = report
	}
	if v != Passed { // a program that reads only the comparison must not take it for a result
		report.Withhold(reason)
	} else if unknown != "" {
		report.Withhold(unknown)
	}
	says, _ := report.Conclusion(c.names())
	switch {
	case strings.HasPrefix(r.out.Result.Error, "mode: is 'compare'"):
		return v, reason + "; the node's kbnode is too old to compare: upgrade it, or submit the files one by one"
	case v != Passed:
		return v, reason
	case err != nil:
		return NotPassed, err.Error()
	case unknown != "": // for which neither submission need be at fault
		return NoResult, says
	case !report.Done():
		return NotPassed, says
	}
	return Passed, says
}

// implausible returns why times cannot be, as the node says, or why no one knows whether it found such times: a submission may
// have made them, and what keeps its node's record away must not make them count.
func (r *run) implausible() (odd []string, unknown string) {
	switch {
	case r.out.NodeErr != nil:
		return nil, fmt.Sprintf("it is unknown whether the times can be: %v", r.out.NodeErr)
	case len(r.out.Node) == 0:
		return nil, fmt.Sprintf("the job left no %s, which says whether the times can be; add it to the step's artifact_paths", result.NodeFile)
	}
	var record noise.Record
	if json.Unmarshal(r.out.Node, &record) != nil || record.Schema != noise.Schema {
		return nil, fmt.Sprintf("it is unknown whether the times can be: %s is of another version of kbnode", result.NodeFile)
	}
	for _, f := range witness.Clean(record.Implausible) {
		odd = append(odd, f.String())
	}
	return odd, ""
}
