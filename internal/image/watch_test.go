package image

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// TestFirstJobs counts the jobs after an image has become current.
func TestFirstJobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		codes  []int
		back   bool
		failed int // of a trial that goes on; -1 if it is over
	}{
		{codes: nil},
		{codes: []int{0}, failed: -1},
		{codes: []int{1, 1}, failed: 2},
		{codes: []int{1, 1, 1}, back: true, failed: -1},
		{codes: []int{1, 1, 0, 1}, failed: -1},
		{codes: []int{143, 137, 1, 137, 128}, failed: 2},
		{codes: []int{127, 126, 2}, back: true, failed: -1},
	} {
		for _, previous := range []bool{true, false} {
			w, dir := newWorld(t), t.TempDir()
			mustDo(t, ActionUpdated)(w.updater(dir).Update(t.Context(), Options{}))
			s, err := Read(dir)
			if !previous {
				s.Previous = nil
			}
			if err = errors.Join(err, s.write(dir)); err != nil {
				t.Fatal(err)
			}
			w.ends = []docker.End{{Image: name, Time: s.Trial.Seen}} // of the time before
			for i, code := range tt.codes {
				w.ends = append(w.ends, docker.End{Image: name, ExitCode: code, Time: s.Trial.Seen.Add(time.Duration(i+1) * time.Second)})
			}
			want := map[bool]string{false: ActionNone, true: ActionBack}[tt.back && previous]
			mustDo(t, want)(w.updater(dir).Watch(t.Context()))
			s, err = Read(dir)
			failed := -1
			if s.Trial != nil {
				failed = s.Trial.Failed
			}
			if err != nil || failed != tt.failed {
				t.Errorf("%v: %d failed, want %d, %v", tt.codes, failed, tt.failed, err)
			}
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
