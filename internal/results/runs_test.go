package results

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/result"
)

const (
	machine  = `{"gpu":"NVIDIA B200","device_count":1,"cpu":"c","runtime":"CUDA","platform":"p","torch":"2.7.0","hostname":"h"}`
	compiled = `{"nvcc_found":true,"nvcc_version":"12.8","success":true,"command":"nvcc","stdout":"","stderr":"","exit_code":0}`
)

// evaluated returns a member of runs.
func evaluated(name, compilation string, passed bool, reported string) string {
	return fmt.Sprintf(`%q:{"start":"2026-03-04T05:06:07.123456","end":"2026-03-04T05:06:09","compilation":%s,"run":{"success":true,`+
		`"passed":%v,"command":"python3 eval.py","stdout":"out","stderr":"","exit_code":0,"duration":1.5,"result":%s},"profile":null}`,
		name, compilation, passed, reported)
}

func resultOf(evaluations ...string) string {
	return fmt.Sprintf(`{"success":true,"error":"","system":%s,"runs":{%s}}`, machine, strings.Join(evaluations, ","))
}

const (
	one   = `{"check":"pass","benchmark-count":"1","benchmark.0.mean":"2500000"}`
	three = `{"check":"pass","benchmark-count":"3","benchmark.0.mean":"1000000","benchmark.1.mean":"10000000.0","benchmark.2.mean":"1e8"}`
)

func TestRunsOf(t *testing.T) {
	t.Parallel()
	doc := resultOf(
		evaluated("test", compiled, true, `{"check":"pass","test-count":"1"}`),
		evaluated("benchmark", "null", true, one),
		evaluated("leaderboard", "null", true, one))
	got, err := RunsOf([]byte(doc), "last", "B200_BK")
	if err != nil {
		t.Fatal(err)
	}
	seconds := 0.0025
	meta := json.RawMessage(`{"stdout":"out","stderr":"","success":true,"exit_code":0,"command":"python3 eval.py","duration":1.5}`)
	base := Run{
		Runner: "B200_BK", Passed: true, Meta: meta, System: json.RawMessage(machine),
		Start: time.Date(2026, 3, 4, 5, 6, 7, 123456000, time.UTC), End: time.Date(2026, 3, 4, 5, 6, 9, 0, time.UTC),
	}
	want := []Run{base, base, base}
	want[0].Mode, want[0].Compile, want[0].Result = "test", json.RawMessage(compiled), json.RawMessage(`{"check":"pass","test-count":"1"}`)
	want[1].Mode, want[1].Result = "benchmark", json.RawMessage(`{"benchmark-count":"1","benchmark.0.mean":"2500000","check":"pass"}`)
	want[2].Mode, want[2].Result, want[2].Score = "leaderboard", want[1].Result, &seconds
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRunsOfRunner checks that RunsOf reads every field that the runner writes.
func TestRunsOfRunner(t *testing.T) {
	t.Parallel()
	doc, err := json.Marshal(&result.Result{
		Success: true,
		System:  &result.System{GPU: "g", DeviceCount: 2, CPU: "c", Runtime: "CUDA", Platform: "p", Torch: "t", Hostname: "h"},
		Runs: result.Pairs[*result.Evaluation]{
			{Key: "test", Value: &result.Evaluation{
				Compilation: &result.Compilation{NvccFound: true, NvccVersion: "v", Success: true, Command: "nvcc", Stdout: "o", Stderr: "e", ExitCode: 3},
				Run: &result.Run{Success: true, Passed: true, Command: "./eval", Stdout: "O", Stderr: "E", ExitCode: 112, Duration: "0.25",
					Result: result.Pairs[string]{{Key: "check", Value: "pass"}}},
				Profile: &result.Profile{Profiler: "rocPROF", Trace: "UEs="},
			}},
			{Key: "benchmark", Value: &result.Evaluation{Compilation: &result.Compilation{}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The zero time is refused.
	doc = bytes.ReplaceAll(doc, []byte(`"0001-01-01T00:00:00"`), []byte(`"2026-01-01T00:00:00"`))
	got, err := RunsOf(doc, "geom", "H100_BK")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	want := []Run{{
		Mode: "test", Runner: "H100_BK", Start: at, End: at, Passed: true,
		Compile: json.RawMessage(`{"nvcc_found":true,"nvcc_version":"v","success":true,"command":"nvcc","stdout":"o","stderr":"e","exit_code":3}`),
		Meta:    json.RawMessage(`{"stdout":"O","stderr":"E","success":true,"exit_code":112,"command":"./eval","duration":0.25}`),
		Result:  json.RawMessage(`{"check":"pass"}`),
		System:  json.RawMessage(`{"gpu":"g","device_count":2,"cpu":"c","runtime":"CUDA","platform":"p","torch":"t","hostname":"h"}`),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestScore(t *testing.T) {
	t.Parallel()
	tiny := `{"benchmark-count":"200"`
	for i := range 200 {
		tiny += fmt.Sprintf(`,"benchmark.%d.mean":"1000"`, i)
	}
	for _, c := range []struct {
		name, rankingBy, reported string
		passed                    bool
		want                      float64 // 0: no score
		err                       string
	}{
		{name: "last", rankingBy: "last", reported: one, passed: true, want: 0.0025},
		{name: "last is the default", reported: one, passed: true, want: 0.0025},
		{name: "mean", rankingBy: "mean", reported: three, passed: true, want: 0.037},
		{name: "geom", rankingBy: "geom", reported: three, passed: true, want: 0.01},
		{name: "geom of a product below all numbers", rankingBy: "geom", reported: tiny + "}", passed: true, want: 1e-6},
		{name: "not passed", rankingBy: "last", reported: three},
		{name: "last of three", rankingBy: "last", reported: three, passed: true, err: "reports 3 benchmarks"},
		{name: "unknown", rankingBy: "best", reported: one, passed: true, err: "last, mean or geom"},
		{name: "no count", rankingBy: "last", reported: `{}`, passed: true, err: "benchmark-count"},
		{name: "huge count", rankingBy: "geom", reported: `{"benchmark-count":"999999999999"}`, passed: true, err: "benchmark-count"},
		{name: "one missing", rankingBy: "geom", reported: `{"benchmark-count":"2","benchmark.0.mean":"1"}`, passed: true, err: "benchmark.1.mean"},
		{name: "nan", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"nan"}`, passed: true, err: "nanoseconds"},
		{name: "inf", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"1e999"}`, passed: true, err: "nanoseconds"},
		{name: "negative", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"-1"}`, passed: true, err: "nanoseconds"},
		{name: "hexadecimal", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"0x1p4"}`, passed: true, err: "nanoseconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := RunsOf([]byte(resultOf(evaluated("leaderboard", "null", c.passed, c.reported))), c.rankingBy, "B200_BK")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v does not say %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &c.want
			if c.want == 0 {
				want = nil
			}
			if diff := cmp.Diff(want, got[0].Score, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRunsOfRefuses(t *testing.T) {
	t.Parallel()
	fine := evaluated("test", "null", true, "{}")
	many := make([]string, maxRuns+1)
	for i := range many {
		many[i] = evaluated(fmt.Sprint("profile.", i), "null", true, "{}")
	}
	for _, c := range []struct{ name, doc, err string }{
		{"nothing", "", "not one JSON document"},
		{"cut", resultOf(fine)[:40], "not one JSON document"},
		{"two documents", resultOf(fine) + "{}", "not one JSON document"},
		{"a list", "[]", "cannot unmarshal"},
		{"the runner failed", `{"success":false,"error":"python3 \u001b[31mis missing","system":{},"runs":{}}`, "python3 is missing"},
		{"an unknown key", strings.Replace(resultOf(fine), `"passed"`, `"\u001b[2J":1,"passed"`, 1), `unknown field`},
		{"too many runs", resultOf(many...), "more than 256"},
		{"no system", `{"success":true,"error":"","system":null,"runs":{}}`, "system is missing"},
		{"no runs", `{"success":true,"error":"","system":` + machine + `,"runs":[]}`, "not an object"},
		{"no time", strings.Replace(resultOf(fine), "2026-03-04T05:06:09", "now", 1), "not a time"},
		{"no start", strings.Replace(resultOf(fine), `"start"`, `"end"`, 1), "start or end is missing"},
		{"a result of numbers", resultOf(evaluated("test", "null", true, `{"a":1}`)), "cannot unmarshal"},
		{"a duration out of range", strings.Replace(resultOf(fine), "1.5", "1e999", 1), "not a number of seconds"},
		{"deep", `{"success":` + strings.Repeat("[", 1<<20), "not one JSON document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := RunsOf([]byte(c.doc), "last", "B200_BK")
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.ContainsAny(err.Error(), "\x1b\x00\n") || len(err.Error()) > 2000 {
				t.Errorf("%d runs, error %q does not say %q", len(got), err, c.err)
			}
		})
	}
}

// A failed compilation leaves nothing to run, and no row.
func TestRunsOfCompileError(t *testing.T) {
	t.Parallel()
	doc := resultOf(`"test":{"start":"2026-03-04T05:06:07","end":"2026-03-04T05:06:09","compilation":` + compiled + `,"run":null,"profile":null}`)
	if got, err := RunsOf([]byte(doc), "last", "B200_BK"); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzRunsOf(f *testing.F) {
	f.Add(resultOf(evaluated("leaderboard", compiled, true, three)), "geom")
	f.Add(resultOf(evaluated("test\\u0000", "null", false, `{"a\u0000":"\u0000\ud800","a\ufffd":"b"}`)), "mean")
	f.Add(resultOf(evaluated("leaderboard", "null", true, one)), "last")
	f.Add(`{"success":false,"error":"\u001b"}`, "")
	f.Fuzz(func(t *testing.T, doc, rankingBy string) {
		runs, err := RunsOf([]byte(doc), rankingBy, "B200_BK")
		if err != nil {
			if runs != nil || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("%d runs with error %q", len(runs), err)
			}
			return
		}
		again, err := RunsOf([]byte(doc), rankingBy, "B200_BK")
		if diff := cmp.Diff(runs, again); diff != "" || err != nil {
			t.Errorf("another result the second time: %v\n%s", err, diff)
		}
		for _, r := range runs {
			if r.Score != nil && (!(*r.Score > 0) || math.IsInf(*r.Score, 0)) || len(r.Mode) > 300 {
				t.Errorf("%+v", r)
			}
			for _, doc := range []json.RawMessage{r.Compile, r.Meta, r.Result, r.System} {
				if doc == nil {
					continue
				}
				if !json.Valid(doc) || !utf8.Valid(doc) || hasNUL(t, doc) {
					t.Errorf("PostgreSQL would not take %q", doc)
				}
			}
		}
	})
}

// hasNUL reports whether a string in a JSON text contains U+0000.
func hasNUL(t *testing.T, doc []byte) bool {
	in := json.NewDecoder(bytes.NewReader(doc))
	for in.More() {
		token, err := in.Token()
		if err != nil {
			t.Fatal(err)
		}
		if s, is := token.(string); is && strings.Contains(s, "\x00") {
			return true
		}
	}
	return false
}
