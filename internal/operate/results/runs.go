package results

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
)

// runColumns are the columns of table runs after the submission's. A score is in seconds,
// and NULL if the run is not ranked.
var runColumns = []string{
	"start_time", "end_time", "mode", "secret", "runner", "score", "passed", "compilation", "meta", "result", "system_info",
}

// noNUL puts U+FFFD in place of U+0000, which PostgreSQL cannot hold, in a JSON text. The first
// pair keeps escaped backslashes.
var noNUL = strings.NewReplacer(`\\`, `\\`, `\u0000`, `\ufffd`)

// RunsOf converts the evaluations of a result.json to rows, as kernelbot's backend does: none
// for an evaluation whose compilation failed, so that the task's program did not run, and a
// score for the evaluation leaderboard, if it succeeded and passed. rankingBy is the task's
// (last, mean or geom), and gpu is the GPU type that the job ran on.
func RunsOf(doc []byte, rankingBy, gpu string) ([]Run, error) {
	d, err := result.ReadStrict([]byte(noNUL.Replace(string(doc))))
	if err != nil {
		return nil, err
	}
	if d.System == nil {
		return nil, fmt.Errorf("read %s: system is missing", result.File)
	}
	var runs []Run
	for _, e := range d.Runs {
		r := e.Value.Run
		if r == nil {
			continue
		}
		start, end := time.Time(e.Value.Start), time.Time(e.Value.End)
		if start.IsZero() || end.IsZero() {
			return nil, fmt.Errorf("read %s: run %.60q: start or end is missing or not a time; write YYYY-MM-DDTHH:MM:SS.ffffff", result.File, e.Key)
		}
		reported := make(map[string]string, len(r.Result))
		for _, p := range r.Result {
			reported[p.Key] = p.Value
		}
		var ranked, compiled any // NULL
		if e.Key == "leaderboard" && r.Success && r.Passed {
			if ranked, err = score(reported, rankingBy); err != nil {
				return nil, fmt.Errorf("read %s: run %q: %w", result.File, e.Key, err)
			}
		}
		if e.Value.Compilation != nil {
			compiled = e.Value.Compilation
		}
		meta := map[string]any{
			"stdout": r.Stdout, "stderr": r.Stderr, "success": r.Success, "exit_code": r.ExitCode, "command": r.Command, "duration": r.Duration,
		}
		runs = append(runs, Run{start, end, e.Key, false, gpu, ranked, r.Passed, compiled, meta, reported, d.System})
	}
	return runs, nil
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
		if err != nil || !(ns > 0) || math.IsInf(ns, 1) {
			return 0, fmt.Errorf("%s %.40q is not a time in nanoseconds", name, reported[name])
		}
		sum += ns / 1e9
		logs += math.Log(ns / 1e9)
	}
	switch {
	case rankingBy == "mean":
		return sum / float64(count), nil
	case rankingBy == "geom":
		return math.Exp(logs / float64(count)), nil
	case count > 1:
		return 0, fmt.Errorf("it reports %d benchmarks, but ranking_by: last takes exactly one", count)
	}
	return sum, nil
}
