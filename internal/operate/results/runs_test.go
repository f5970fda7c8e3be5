package results

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/test/must"
)

const (
	machine  = `{"gpu":"NVIDIA B200","device_count":1,"cpu":"c","runtime":"CUDA","platform":"p","torch":"2.7.0","hostname":"h"}`
	compiled = `{"nvcc_found":true,"nvcc_version":"12.8","success":true,"command":"nvcc","stdout":"","stderr":"","exit_code":0}`
	one      = `{"benchmark-count":"1","benchmark.0.mean":"2500000","check":"pass"}`
	three    = `{"check":"pass","benchmark-count":"3","benchmark.0.mean":"1000000","benchmark.1.mean":"10000000.0","benchmark.2.mean":"1e8"}`
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

func TestRunsOf(t *testing.T) {
	t.Parallel()
	got, err := RunsOf([]byte(resultOf(
		evaluated("test", compiled, true, `{"a":"\\u0000\u0000\ud800"}`),
		// A failed compilation leaves nothing to run, and no row.
		`"profile.0":{"start":"2026-03-04T05:06:07","end":"2026-03-04T05:06:09","compilation":`+compiled+`,"run":null,"profile":null}`,
		evaluated("leaderboard", "null", true, one))), "last", "B200_BK")
	must.Do(t, err)
	const meta = `{"command":"python3 eval.py","duration":1.5,"exit_code":0,"stderr":"","stdout":"out","success":true}`
	start, end := time.Date(2026, 3, 4, 5, 6, 7, 123456000, time.UTC), time.Date(2026, 3, 4, 5, 6, 9, 0, time.UTC)
	want := []Run{
		{start, end, "test", false, "B200_BK", nil, true, compiled, meta, `{"a":"\\u0000` + "\ufffd\ufffd" + `"}`, machine},
		{start, end, "leaderboard", false, "B200_BK", 0.0025, true, nil, meta, one, machine},
	}
	for _, run := range got {
		for i, value := range run[7:] { // as the driver sends documents
			if value != nil {
				text, err := json.Marshal(value)
				must.Do(t, err)
				run[7+i] = string(text)
			}
		}
	}
	must.Equal(t, want, got)
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
		want                      any
		err                       string
	}{
		{name: "last", rankingBy: "last", reported: one, passed: true, want: 0.0025},
		{name: "mean", rankingBy: "mean", reported: three, passed: true, want: 0.037},
		{name: "geom", rankingBy: "geom", reported: three, passed: true, want: 0.01},
		{name: "geom of a product below all numbers", rankingBy: "geom", reported: tiny + "}", passed: true, want: 1e-6},
		{name: "not passed", rankingBy: "last", reported: three},
		{name: "last of three", rankingBy: "last", reported: three, passed: true, err: "reports 3 benchmarks"},
		{name: "no count", rankingBy: "last", reported: `{}`, passed: true, err: "benchmark-count"},
		{name: "count of none", rankingBy: "mean", reported: `{"benchmark-count":"0"}`, passed: true, err: "benchmark-count"},
		{name: "huge count", rankingBy: "geom", reported: `{"benchmark-count":"999999999999"}`, passed: true, err: "benchmark-count"},
		{name: "one missing", rankingBy: "geom", reported: `{"benchmark-count":"2","benchmark.0.mean":"1"}`, passed: true, err: "benchmark.1.mean"},
		{name: "nan", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"nan"}`, passed: true, err: "nanoseconds"},
		{name: "inf", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"inf"}`, passed: true, err: "nanoseconds"},
		{name: "zero", rankingBy: "last", reported: `{"benchmark-count":"1","benchmark.0.mean":"0"}`, passed: true, err: "nanoseconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := RunsOf([]byte(resultOf(evaluated("leaderboard", "null", c.passed, c.reported))), c.rankingBy, "B200_BK")
			must.Err(t, err, c.err)
			if err != nil {
				return
			}
			must.Equal(t, c.want, got[0][5], cmpopts.EquateApprox(1e-12, 0))
		})
	}
}

func TestRunsOfRefuses(t *testing.T) {
	t.Parallel()
	fine := evaluated("test", "null", true, "{}")
	for _, c := range []struct{ name, doc, err string }{
		{"cut", resultOf(fine)[:40], "not one JSON document"},
		{"an unknown key", strings.Replace(resultOf(fine), `"passed"`, `"\u001b[2J":1,"passed"`, 1), "unknown field"},
		{"no system", `{"success":true,"error":"","system":null,"runs":{}}`, "system is missing"},
		{"no time", strings.Replace(resultOf(fine), "2026-03-04T05:06:09", "now", 1), "not a time"},
		{"no start", strings.Replace(resultOf(fine), `"start"`, `"end"`, 1), "start or end is missing"},
	} {
		_, err := RunsOf([]byte(c.doc), "last", "B200_BK")
		must.Err(t, err, c.err)
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\x00\n") {
			t.Errorf("%s: %q", c.name, err)
		}
	}
}
