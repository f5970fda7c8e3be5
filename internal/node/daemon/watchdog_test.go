package daemon

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// watchdogTime is the watchdog interval in the daemon's unit.
func watchdogTime(t *testing.T) time.Duration {
	t.Helper()
	unit, err := os.ReadFile("../../../systemd/kbnode.service.tmpl")
	must.Do(t, err)
	seconds, err := strconv.Atoi(string(regexp.MustCompile(`(?m)^WatchdogSec=(\d+)$`).FindSubmatch(unit)[1]))
	must.Do(t, err)
	return time.Duration(seconds) * time.Second
}

// TestWatchdogIsFed checks that no slow call starves the watchdog: the service manager
// would kill the daemon in the middle of its work.
func TestWatchdogIsFed(t *testing.T) {
	t.Parallel()
	longest := watchdogTime(t)
	forever := func(methods ...string) func(*fakeNode) {
		return func(n *fakeNode) {
			n.hang = map[string]chan struct{}{}
			for _, m := range methods {
				n.hang[m] = make(chan struct{})
			}
		}
	}
	for name, slow := range map[string]func(*fakeNode){
		"nothing":                   func(*fakeNode) {},
		"no systemd":                func(n *fakeNode) { n.hostErr = errors.New("no answer") },
		"reads that hang":           forever("Read", "GPUs", "Observe", "Stamp"),
		"reads that hang later":     func(*fakeNode) {},
		"units that start slowly":   func(n *fakeNode) { n.sd.Hook = func(string) error { time.Sleep(90 * time.Second); return nil } },
		"agents that stop slowly":   func(n *fakeNode) { n.sd.Hook = func(string) error { time.Sleep(20 * time.Second); return nil } },
		"a machine read in minutes": func(n *fakeNode) { n.onRead = func() { time.Sleep(2 * time.Minute) } },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode) {
				n.gpus = twoGPUs()
				slow(n)
				var mu sync.Mutex
				fed := []time.Time{time.Now()}
				running(t, n, Options{Notify: func(s string) {
					mu.Lock()
					defer mu.Unlock()
					if s == "WATCHDOG=1" {
						fed = append(fed, time.Now())
					}
				}})
				time.Sleep(15 * time.Minute)
				if name == "reads that hang later" {
					n.set(func() { forever("Read", "GPUs", "Observe", "Stamp")(n) })
				}
				n.lose(0)
				time.Sleep(15 * time.Minute)
				mu.Lock()
				fed = append(fed, time.Now())
				for i := range len(fed) - 1 {
					if gap := fed[i+1].Sub(fed[i]); gap > longest*2/3 {
						t.Errorf("fed after %s, and has %s", gap, longest)
					}
				}
				mu.Unlock()
				for _, hang := range n.hang {
					close(hang)
				}
				n.set(func() { n.hang = nil })
			})
		})
	}
}

// TestPassHasADeadline checks that a pass that takes too long ends in the middle of its
// changes.
func TestPassHasADeadline(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		var slow atomic.Bool
		n.sd.Hook = func(string) error {
			if slow.Load() {
				time.Sleep(passTime + time.Second)
			}
			return nil
		}
		log, _ := running(t, n, Options{})
		n.sd.Words()
		slow.Store(true)
		for i := range 2 {
			must.Do(t, n.sd.Fail(plan.AgentUnit(i)))
		}
		n.spoil(t)
		time.Sleep(passTime + 45*time.Second)
		slow.Store(false)
		time.Sleep(2 * passTime)
		if !slices.Contains(kinds(t, log), "error: context deadline exceeded") {
			t.Errorf("events %q", kinds(t, log))
		}
	})
}
