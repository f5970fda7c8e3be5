package runner

import (
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestMaxTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		more string // members of the payload
		want float64
	}{
		{`"lang":"py","mode":"test"`, 120 + 180},
		{`"lang":"py","mode":"test","test_timeout":5.5,"ranked_timeout":7`, 120 + 5.5},
		{`"lang":"py","mode":"benchmark","benchmark_timeout":600`, 120 + 600},
		{`"lang":"py","mode":"leaderboard","test_timeout":240,"benchmark_timeout":600,"ranked_timeout":1200`, 120 + 240 + 600 + 1200},
		{`"lang":"py","mode":"private","test_timeout":-5,"ranked_timeout":0`, 120 + 180},
		{`"lang":"cu","mode":"test"`, 10 + 120 + 180},
		{`"lang":"cu","mode":"leaderboard"`, 3 * (10 + 120 + 180)},
		{`"lang":"py","mode":"profile","benchmark_timeout":900`, 120 + 2*(900+60)},
		{`"lang":"cu","mode":"profile","benchmark_timeout":900`, 2 * (10 + 120 + 900 + 60)},
		{`"lang":"py","mode":"compare","rounds":10,"other_sources":{"eval.py":""},"tests":[{}],"benchmark_timeout":100`, 2*120 + 2*180 + 20*100},
		{`"lang":"py","mode":"compare","rounds":3,"other_sources":{"eval.py":""},"ranked_timeout":7`, 2*120 + 6*180},
		{`"lang":"cu","mode":"compare","rounds":3,"other_sources":{"eval.py":""},"tests":[{}]`, 8 * (10 + 120 + 180)},
		{`"lang":"py","mode":"test","test_timeout":null`, longest.Seconds()},
		{`"lang":"py","mode":"leaderboard","test_timeout":1e999,"ranked_timeout":1e300`, longest.Seconds()},
		{`"lang":"py","mode":"test","test_timeout":604799`, longest.Seconds()},
	} {
		o, err := payload.ParseObject(`{"sources":{"eval.py":""},"main":"eval.py","benchmarks":[{"a":1},{"a":2}],` + c.more + `}`)
		must.Do(t, err)
		got, err := MaxTime(o)
		if err != nil || got != time.Duration(c.want*float64(time.Second)) {
			t.Errorf("%s: got %s, %v; want %g s", c.more, got, err, c.want)
		}
	}
	o, err := payload.ParseObject(`{"lang":"py","mode":"test","sources":{},"main":"eval.py"}`)
	must.Do(t, err)
	if got, err := MaxTime(o); err == nil || got != 0 {
		t.Errorf("a payload that is refused: got %s, %v", got, err)
	}
}
