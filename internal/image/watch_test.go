package image

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

func TestFirstJobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		codes   []int
		verdict Verdict
		failed  int
	}{
		{codes: nil},
		{codes: []int{0}, verdict: Good},
		{codes: []int{1, 1}, failed: 2},
		{codes: []int{1, 1, 1}, verdict: Bad, failed: 3},
		{codes: []int{1, 1, 0}, verdict: Good, failed: 2},
		{codes: []int{143, 137, 1, 137, 1}, failed: 2},
		{codes: []int{127, 126, 2}, verdict: Bad, failed: 3},
	} {
		trial, verdict := Trial{Jobs: 3, Seen: time.Unix(100, 0)}, Undecided
		trial, v := FirstJobs(trial, docker.End{ExitCode: 1, Time: time.Unix(100, 0)})
		if v != Undecided || trial.Failed != 0 {
			t.Error("a job of the time before counts")
		}
		for i, code := range tt.codes {
			trial, verdict = FirstJobs(trial, docker.End{ExitCode: code, Time: time.Unix(int64(101+i), 0)})
			if verdict != Undecided {
				break
			}
		}
		if verdict != tt.verdict || trial.Failed != tt.failed {
			t.Errorf("%v: %v, %d failed; want %v, %d", tt.codes, verdict, trial.Failed, tt.verdict, tt.failed)
		}
	}
}

// TestWatch goes back when the first jobs with a new image all fail, and counts each of
// them once.
func TestWatch(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	for n := 1; n <= 2; n++ {
		w.registry[name] = digest(n)
		mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
	}
	end := func(image string, code int) {
		w.ends = append(w.ends, docker.End{ID: fmt.Sprint(len(w.ends)), Image: image, ExitCode: code, Time: time.Now()})
	}
	w.ends = append(w.ends, docker.End{Image: name, Time: time.Now().Add(-time.Hour)}) // before the trial
	end("other:tag", 0)
	end(name, 1)
	end(name, 1)
	for range 3 {
		mustDo(t, ActionNone)(w.updater(dir).Watch(t.Context()))
	}
	if w.names[name] != id(2) {
		t.Fatal("went back after two")
	}
	end(name, 1)
	mustDo(t, ActionBack)(w.updater(dir).Watch(t.Context()))
	if w.names[name] != id(1) {
		t.Error("the name does not stand for the previous image")
	}
	mustDo(t, ActionSkipped)(w.updater(dir).Update(t.Context(), Options{Auto: true}))

	w.registry[name] = digest(3)
	mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{Auto: true}))
	end(name, 1)
	end(name, 0)
	for range 9 {
		end(name, 1)
	}
	mustDo(t, ActionNone)(w.updater(dir).Watch(t.Context()))
	steps := w.steps
	mustDo(t, ActionNone)(w.updater(dir).Watch(t.Context()))
	if w.steps != steps || w.names[name] != id(3) {
		t.Error("the trial goes on after a job that ended well")
	}
}
