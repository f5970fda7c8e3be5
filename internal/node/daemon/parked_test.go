package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// levels returns the events of a kind that people are notified of.
func levels(t *testing.T, l events.Log, kinds ...string) (all []string) {
	t.Helper()
	must.Do(t, l.Read(func(e events.Event) {
		if e.Level != "" && slices.Contains(kinds, e.Kind) {
			all = append(all, fmt.Sprintf("%s %d %s: %s", e.Kind, e.Slot, e.Level, e.Text))
		}
	}))
	return all
}

// TestParkedSlots checks that a slot that stays parked is an event, once, also for another daemon, and its return another.
func TestParkedSlots(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		log, _ := running(t, n, Options{})
		dir := filepath.Join(n.root, plan.RunDir(1), "parked")
		must.Do(t, os.MkdirAll(dir, 0o755))
		park := func() {
			text := fmt.Sprintf(`{"reason":"its GPU is in use","since":%q}`, time.Now().UTC().Format(time.RFC3339))
			must.Do(t, os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(text), 0o600))
		}
		unpark := func() { must.Do(t, os.Remove(filepath.Join(dir, "gpu.json"))) }
		park()
		later(45 * time.Second)
		unpark()
		later(2 * time.Minute)
		var want []string
		must.Equal(t, want, levels(t, log, "park", "unpark"))
		park()
		later(5 * time.Minute)
		want = append(want, "park 1 warn: gpu1 is parked: its GPU is in use")
		must.Equal(t, want, levels(t, log, "park", "unpark"))
		must.Do(t, log.Add(events.Event{Kind: "park", Slot: 0})) // as of a daemon before
		running(t, n, Options{})
		later(5 * time.Minute)
		want = append(want, "unpark 0 info: gpu0 is no longer parked")
		must.Equal(t, want, levels(t, log, "park", "unpark"))
		unpark()
		later(5 * time.Minute)
		if got := levels(t, log, "park", "unpark"); !slices.Contains(got, "unpark 1 info: gpu1 is no longer parked") {
			t.Errorf("events %q", got)
		}
	})
}

// TestParkedByAWrongClock boots a machine whose clock is in the future until NTP sets it back: how long a slot is parked does not
// depend on that.
func TestParkedByAWrongClock(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.away = twoGPUs(), map[int]string{1: "its GPU is missing"}
		began := time.Now()
		log, _ := running(t, n, Options{Clock: skewed("1", func() time.Duration {
			if time.Since(began) < 20*time.Second {
				return 5 * time.Hour
			}
			return 0
		})})
		later(5 * time.Minute)
		must.Equal(t, []string{"park 1 warn: gpu1 is parked: its GPU is missing"}, levels(t, log, "park", "unpark"))
	})
}

// TestParkedByThePlan checks that a slot whose GPU is away is an event, too.
func TestParkedByThePlan(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		log, _ := running(t, n, Options{})
		n.set(func() { n.away, n.stamp = map[int]string{1: "its GPU is missing"}, "away" })
		later(5 * time.Minute)
		must.Equal(t, []string{"park 1 warn: gpu1 is parked: its GPU is missing"}, levels(t, log, "park", "unpark"))
		n.set(func() { n.away, n.stamp = nil, "back" })
		later(5 * time.Minute)
		must.Equal(t, "unpark 1 info: gpu1 is no longer parked", levels(t, log, "park", "unpark")[1])
	})
}

// TestErrorOverRestart checks that an error that lasts over a restart is one event, as is one with a figure that changes,
// and that its end is an event of the next daemon.
func TestErrorOverRestart(t *testing.T) {
	t.Parallel()
	log := events.Log{File: filepath.Join(t.TempDir(), "events.jsonl")}
	daemon := func() *daemonLoop {
		return &daemonLoop{Options: Options{Events: log, Log: slog.New(slog.DiscardHandler), Notify: func(string) {}}}
	}
	d := daemon()
	for port := range 20 {
		d.report(fmt.Errorf("dial from port %d: refused\nand more", 40000+port))
	}
	d = daemon()
	d.report(errors.New("dial from port 40100: refused\nand more"))
	d = daemon()
	d.report(nil)
	long := errors.New("git  is not installed" + strings.Repeat("; nor is é", 1000))
	d.report(long)
	d = daemon()
	d.report(long)
	d.report(nil)
	if got := levels(t, log, "error", "recovered"); len(got) != 4 {
		t.Errorf("%d events", len(got))
	}
	must.Equal(t, []string{"error -1 warn: dial from port 40000: refused; and more", "recovered -1 info: the node can be reconciled again"}, levels(t, log, "error", "recovered")[:2])
}
