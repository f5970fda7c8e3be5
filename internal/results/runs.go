package results

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/text"
)

const maxRuns = 256 // in one result.json

// meta is the content of column meta.
type meta struct {
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	Success  bool    `json:"success"`
	ExitCode int     `json:"exit_code"`
	Command  string  `json:"command"`
	Duration float64 `json:"duration"` // seconds
}

// RunsOf converts the evaluations of a result.json to rows, as kernelbot's backend
// does. rankingBy is the task's ranking_by (last, mean or geom; empty is last), and gpu
// is the GPU type that the job ran on. Like kernelbot, it makes no row for an evaluation whose compilation
// failed, so that the task's program did not run. The score, in seconds, is that of the
// evaluation leaderboard, if it succeeded and passed. RunsOf returns an error if the
// document is invalid or the runner reports an error.
func RunsOf(doc []byte, rankingBy, gpu string) ([]Run, error) {
	d, err := result.ReadStrict(withoutNUL(doc))
	switch {
	case err != nil:
		return nil, err
	case !d.Success:
		return nil, fmt.Errorf("read %s: the runner failed: %s", result.File, text.Line(d.Error, 500))
	case d.System == nil:
		return nil, fmt.Errorf("read %s: system is missing", result.File)
	case len(d.Runs) > maxRuns:
		return nil, fmt.Errorf("read %s: there are more than %d runs", result.File, maxRuns)
	}
	var runs []Run
	for _, e := range d.Runs {
		if e.Value.Run == nil {
			continue
		}
		r, err := rowOf(e.Key, e.Value, d.System, rankingBy)
		if err != nil {
			return nil, fmt.Errorf("read %s: run %.60q: %w", result.File, e.Key, err)
		}
		r.Runner = gpu
		runs = append(runs, r)
	}
	return runs, nil
}

// withoutNUL returns a copy of a JSON text with U+FFFD in place of U+0000, which neither text
// nor jsonb can hold in PostgreSQL. JSON writes U+0000 only in this way.
func withoutNUL(doc []byte) []byte {
	doc = bytes.Clone(doc)
	for i := 0; i < len(doc); i++ {
		if doc[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(doc[i:], []byte(`\u0000`)) {
			copy(doc[i:], `\ufffd`)
		}
		i++ // of the escaped character
	}
	return doc
}

func rowOf(name string, e *result.Evaluation, machine *result.System, rankingBy string) (r Run, err error) {
	start, end := time.Time(e.Start).Truncate(time.Microsecond), time.Time(e.End).Truncate(time.Microsecond)
	seconds, err := strconv.ParseFloat(cmp.Or(string(e.Run.Duration), "0"), 64)
	switch {
	case err != nil:
		return r, errors.New("duration is not a number of seconds")
	case name == "" || len(name) > 100:
		return r, errors.New("its name is empty or too long")
	case start.IsZero() || end.IsZero():
		return r, errors.New("start or end is missing or not a time; write YYYY-MM-DDTHH:MM:SS.ffffff")
	case len(e.Run.Result) > result.MaxNames:
		return r, fmt.Errorf("it reports more than %d names", result.MaxNames)
	}
	reported := make(map[string]string, len(e.Run.Result))
	for _, p := range e.Run.Result {
		reported[p.Key] = p.Value
	}
	r = Run{Mode: name, Start: start, End: end, Passed: e.Run.Passed}
	if name == "leaderboard" && e.Run.Success && e.Run.Passed {
		ranked, err := score(reported, rankingBy)
		if err != nil {
			return r, err
		}
		r.Score = &ranked
	}
	for _, column := range []struct {
		to   *json.RawMessage
		from any
	}{
		{&r.Meta, meta{e.Run.Stdout, e.Run.Stderr, e.Run.Success, e.Run.ExitCode, e.Run.Command, seconds}},
		{&r.Result, reported}, {&r.System, machine},
	} {
		*column.to, err = json.Marshal(column.from)
		if err != nil {
			return r, err
		}
	}
	if e.Compilation != nil {
		r.Compile, err = json.Marshal(e.Compilation)
	}
	return r, err
}

// score returns the ranked time of a run in seconds, from its benchmarks' means, which
// are in nanoseconds. It uses logarithms for the geometric mean: the product of many
// short times is too small a number.
func score(reported map[string]string, rankingBy string) (float64, error) {
	count, err := strconv.Atoi(reported["benchmark-count"])
	if err != nil || count < 1 || count > len(reported) {
		return 0, fmt.Errorf("benchmark-count %.40q is not the number of benchmarks", reported["benchmark-count"])
	}
	var sum, logs float64
	for i := range count {
		name := fmt.Sprintf("benchmark.%d.mean", i)
		ns, err := strconv.ParseFloat(reported[name], 64)
		if err != nil || !(ns > 0) || math.IsInf(ns, 1) || strings.ContainsAny(reported[name], "xX_") {
			return 0, fmt.Errorf("%s %.40q is not a time in nanoseconds", name, reported[name])
		}
		sum += ns / 1e9
		logs += math.Log(ns / 1e9)
	}
	switch rankingBy {
	case "", "last":
		if count != 1 {
			return 0, fmt.Errorf("it reports %d benchmarks, but ranking_by: last takes exactly one", count)
		}
		return sum, nil
	case "mean":
		return sum / float64(count), nil
	case "geom":
		return math.Exp(logs / float64(count)), nil
	}
	return 0, fmt.Errorf("ranking_by %.40q is unknown; write last, mean or geom", rankingBy)
}
