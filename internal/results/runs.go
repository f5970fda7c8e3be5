package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Limits on a result.json for RunsOf: a profile's trace has 32 MiB, in base64, and
// there is one for each benchmark.
const (
	maxResult = 256 << 20 // bytes
	maxRuns   = 256
	maxNames  = 65536 // reported by the task's program in one run, as in docs/results.md
)

// pgText is a string for PostgreSQL. U+FFFD replaces U+0000, which neither its text nor
// its jsonb can hold. (Decoding has already done this to bytes that are not UTF-8.)
type pgText string

func (t *pgText) UnmarshalJSON(doc []byte) error {
	err := json.Unmarshal(doc, (*string)(t))
	*t = pgText(clean(string(*t)))
	return err
}

func clean(s string) string { return strings.ReplaceAll(s, "\x00", "\ufffd") }

// document is result.json, as docs/results.md describes it. Like kernelbot, RunsOf
// refuses objects with other keys.
type document struct {
	Success bool        `json:"success"`
	Error   pgText      `json:"error"`
	System  *system     `json:"system"`
	Runs    evaluations `json:"runs"`
}

type system struct {
	GPU         pgText `json:"gpu"`
	DeviceCount int    `json:"device_count"`
	CPU         pgText `json:"cpu"`
	Runtime     pgText `json:"runtime"`
	Platform    pgText `json:"platform"`
	Torch       pgText `json:"torch"`
	Hostname    pgText `json:"hostname"`
}

type compilation struct {
	NvccFound   bool   `json:"nvcc_found"`
	NvccVersion pgText `json:"nvcc_version"`
	Success     bool   `json:"success"`
	Command     pgText `json:"command"`
	Stdout      pgText `json:"stdout"`
	Stderr      pgText `json:"stderr"`
	ExitCode    int    `json:"exit_code"`
}

type evaluation struct {
	name        string
	Start       localTime    `json:"start"`
	End         localTime    `json:"end"`
	Compilation *compilation `json:"compilation"`
	Run         *run         `json:"run"`
	Profile     ignored      `json:"profile"` // up to 43 MiB, not stored in the database
}

type ignored struct{}

func (ignored) UnmarshalJSON([]byte) error { return nil }

// meta is the content of column meta.
type meta struct {
	Stdout   pgText  `json:"stdout"`
	Stderr   pgText  `json:"stderr"`
	Success  bool    `json:"success"`
	ExitCode int     `json:"exit_code"`
	Command  pgText  `json:"command"`
	Duration float64 `json:"duration"` // seconds
}

type run struct {
	meta
	Passed bool              `json:"passed"`
	Result map[string]string `json:"result"`
}

// localTime is a time without a zone. The database takes it as UTC, which most
// containers use. A time that has a zone keeps it.
type localTime time.Time

func (t *localTime) UnmarshalJSON(doc []byte) error {
	var s string
	if err := json.Unmarshal(doc, &s); err != nil {
		return err
	}
	at, err := time.Parse("2006-01-02T15:04:05", s) // accepts a fraction too
	if err != nil {
		at, err = time.Parse(time.RFC3339, s)
	}
	if err != nil {
		return fmt.Errorf("%.40q is not a time; write YYYY-MM-DDTHH:MM:SS.ffffff", s)
	}
	*t = localTime(at.Truncate(time.Microsecond))
	return nil
}

// evaluations are the members of runs, in order.
type evaluations []evaluation

func (e *evaluations) UnmarshalJSON(doc []byte) error {
	in := strict(doc)
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return errors.Join(err, errors.New("runs is not an object"))
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		one := evaluation{name: clean(name.(string))}
		if one.name == "" || len(one.name) > 100 || slices.ContainsFunc(*e, func(o evaluation) bool { return o.name == one.name }) {
			return fmt.Errorf("the run's name %.60q is empty, too long or a duplicate", one.name)
		}
		if *e = append(*e, one); len(*e) > maxRuns {
			return fmt.Errorf("there are more than %d runs", maxRuns)
		}
		if err := in.Decode(&(*e)[len(*e)-1]); err != nil {
			return fmt.Errorf("run %.60q: %w", one.name, err)
		}
	}
	return nil
}

func strict(doc []byte) *json.Decoder {
	in := json.NewDecoder(bytes.NewReader(doc))
	in.DisallowUnknownFields()
	return in
}

// RunsOf converts the evaluations of a result.json to rows, as kernelbot's backend
// does. mode is the submission's (private: the rows are secret), rankingBy is the
// task's ranking_by (last, mean or geom; empty is last), and gpu is the GPU type that
// the job ran on. Like kernelbot, it makes no row for an evaluation whose compilation
// failed, so that the task's program did not run. The score, in seconds, is that of the
// evaluation leaderboard, if it succeeded and passed. RunsOf returns an error if the
// document is invalid or the runner reports an error.
func RunsOf(doc []byte, mode, rankingBy, gpu string) ([]Run, error) {
	if len(doc) > maxResult {
		return nil, fmt.Errorf("read result.json: it is over %d bytes", maxResult)
	}
	var d document
	if !json.Valid(doc) {
		return nil, errors.New("read result.json: it is not one JSON document; it may be cut off")
	}
	if err := strict(doc).Decode(&d); err != nil {
		return nil, fmt.Errorf("read result.json: %s", text.Line(err.Error(), 500))
	}
	if !d.Success {
		return nil, fmt.Errorf("read result.json: the runner failed: %.500q", string(d.Error))
	}
	if d.System == nil {
		return nil, errors.New("read result.json: system is missing")
	}
	var runs []Run
	for _, e := range d.Runs {
		if e.Run == nil {
			continue
		}
		r, err := e.row(d.System)
		if err == nil && e.name == "leaderboard" && e.Run.Success && e.Run.Passed {
			var seconds float64
			seconds, err = score(e.Run.Result, rankingBy)
			r.Score = &seconds
		}
		if err != nil {
			return nil, fmt.Errorf("read result.json: run %q: %w", e.name, err)
		}
		r.Secret, r.Runner = mode == "private", gpu
		runs = append(runs, r)
	}
	return runs, nil
}

func (e *evaluation) row(machine *system) (r Run, err error) {
	if time.Time(e.Start).IsZero() || time.Time(e.End).IsZero() {
		return r, errors.New("start or end is missing")
	}
	if len(e.Run.Result) > maxNames {
		return r, fmt.Errorf("it reports more than %d names", maxNames)
	}
	reported := make(map[string]string, len(e.Run.Result))
	for _, name := range slices.Sorted(maps.Keys(e.Run.Result)) { // sorted, because two may become one
		reported[clean(name)] = clean(e.Run.Result[name])
	}
	r = Run{Mode: e.name, Start: time.Time(e.Start), End: time.Time(e.End), Passed: e.Run.Passed}
	for _, column := range []struct {
		to   *json.RawMessage
		from any
	}{{&r.Meta, e.Run.meta}, {&r.Result, reported}, {&r.System, machine}} {
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
