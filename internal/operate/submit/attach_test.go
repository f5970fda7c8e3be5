package submit

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestFollow follows a build that another command has created: to its end, when it has ended, and until an interrupt, which
// cancels nothing.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 1, takes(60, 0, map[string]string{"result.json": good}))
		j := job("a")
		j.Runs = []string{"test"}
		o := Options{Target: Target{Org: "kbnode", Pipeline: "kernelbot"}}
		if _, err := Follow(t.Context(), bk.client, o, "run-a"); err == nil || !strings.Contains(err.Error(), "no build of kbnode/kernelbot has the run ID run-a") {
			t.Error(err)
		}
		done := make(chan Outcome)
		go func() { done <- bk.run(t.Context(), Options{}, j)[0] }()
		time.Sleep(10 * time.Second)
		brief, interrupt := context.WithTimeout(t.Context(), 10*time.Second)
		defer interrupt()
		got, err := Follow(brief, bk.client, o, "run-a")
		if err != nil || got.Verdict != Unknown || got.Reason != "outcome unknown: it is no longer followed; it may still be running" || !got.MayRun() {
			t.Errorf("%+v, %v", got, err)
		}
		for range 2 { // while it runs, and after its end
			got, err = Follow(t.Context(), bk.client, o, "run-a")
			if err != nil || got.Verdict != Passed || got.Result == nil || got.Build != 1 || got.MayRun() {
				t.Errorf("%+v, %v", got, err)
			}
		}
		must.Equal(t, Passed, (<-done).Verdict)
	})
}

// TestFollowWantsAllRuns has a build whose result lacks an evaluation that its sender asked for.
func TestFollowWantsAllRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bk := open(t, bktest.Options{}, 1, takes(1, 0, map[string]string{"result.json": good}))
		j := job("a")
		j.Runs = []string{"test", "leaderboard"}
		bk.run(t.Context(), Options{}, j)
		got, err := Follow(t.Context(), bk.client, Options{Target: Target{Org: "kbnode", Pipeline: "kernelbot"}}, "run-a")
		if err != nil || got.Verdict != NotPassed || !strings.Contains(got.Reason, "has no run leaderboard") {
			t.Errorf("%+v, %v", got, err)
		}
		builds, err := FindRun(t.Context(), bk.client, Target{Org: "kbnode", Pipeline: "kernelbot"}, "run-a")
		must.Do(t, err)
		must.Equal(t, "test leaderboard", builds[0].MetaData[runsKey])
		must.Equal(t, "run-a", builds[0].MetaData[buildkite.RunIDKey])
	})
}
