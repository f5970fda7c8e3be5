package compare

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
)

// Read fills in the report of a comparison that a job made, from its result, and judges it; files, problem and ranking
// are the caller's. odd are the reasons of the node why times cannot be. A wrong submission is a *Failure. After any
// error, there is no verdict: not even an interrupt is known to be that, as a program of the job may have caused it.
func (r *Report) Read(res *result.Result, rounds int, tested bool, odd []string) error {
	r.begin(Modes[0], rounds)
	r.On, r.Odd, r.onNode = res.Machine(), odd, true
	var both [2]timings
	for _, t := range result.Turns(rounds, tested) {
		ev := res.Runs.Get(t.Name())
		switch passed := ev != nil && ev.Run != nil && ev.Run.Passed; {
		case !passed && !res.Success: // an interrupt, which ended this one, too
			return r.stop(errors.New(res.Error))
		case ev == nil:
			return r.stop(fmt.Errorf("its result has no run %s; check that the pipeline evaluates what it is sent", t.Name()))
		case !passed:
			return r.stop(&Failure{Side: t.Side, Round: t.Round, Result: res})
		case t.Round == 0:
			continue
		}
		if r.Time.IsZero() {
			r.Time = time.Time(ev.Start).Truncate(time.Second)
		}
		var err error
		if both[t.Side], err = r.times(t.Round, t.Side, ev, t.Name()); err == nil && t.Side != result.First(t.Round) {
			err = r.add(t.Round, both)
		}
		if err != nil {
			return r.stop(err)
		}
	}
	if !res.Success {
		return r.stop(errors.New(res.Error))
	}
	r.Judge(r.specs)
	return nil
}
