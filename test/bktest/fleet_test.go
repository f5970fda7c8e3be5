package bktest_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestFleet runs a thousand nodes of eight agents each, in simulated time, and an operator
// with Buildkite's limit of fifty requests a minute. docs/fleet.md has its output.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	const nodes, slots = 1000, 8
	synctest.Test(t, func(t *testing.T) {
		s := bktest.New(bktest.Options{PingSeconds: 10, RateLimit: 50})
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); synctest.Wait() }()
		client, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire(), Patient: true})
		must.Do(t, err)
		rates := &rates{last: s.Requests()}

		// Power returns: all nodes boot within two minutes.
		var group sync.WaitGroup
		boots := rand.New(rand.NewPCG(1, 1))
		for n := range nodes {
			after := time.Duration(boots.Int64N(int64(2 * time.Minute)))
			group.Go(func() {
				time.Sleep(after)
				for k := range slots {
					w := bktest.Worker{
						Name: fmt.Sprintf("node%d-gpu%d", n, k), Tags: []string{fmt.Sprintf("queue=q%d", n%20), fmt.Sprintf("gpu-index=%d", k)},
						Do: func(ctx context.Context, _ *bktest.Work) {
							select {
							case <-ctx.Done():
							case <-time.After(time.Minute):
							}
						},
					}
					if err := s.Employ(ctx, w); err != nil {
						t.Error(err)
					}
				}
			})
		}
		rates.watch(s, 3*time.Minute)
		group.Wait()
		t.Logf("boot: %s", rates)
		rates.watch(s, 3*time.Minute)
		t.Logf("at rest: %s", rates)

		measure := func(what string, do func() error) {
			before, began := asked(s), time.Now()
			if err := do(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			t.Logf("%s: %d requests, %s", what, asked(s)-before, time.Since(began).Round(time.Second))
		}
		measure("is there an agent in queue q7", func() error { return submit.CheckQueue(ctx, client, "kbnode", "q7") })
		time.Sleep(time.Minute)
		measure("is there one in no queue", func() error {
			if err := submit.CheckQueue(ctx, client, "kbnode", "q70"); err == nil || !strings.Contains(err.Error(), "no agent is connected in queue q70") {
				return fmt.Errorf("it says %w", err)
			}
			return nil
		})
		time.Sleep(time.Minute)
		measure("all queues", func() error {
			agents, err := client.Agents(ctx, "kbnode")
			if err == nil && len(agents) != nodes*slots {
				return fmt.Errorf("%d agents", len(agents))
			}
			return err
		})
		time.Sleep(time.Minute)
		var jobs []submit.Job
		for i := range 100 {
			jobs = append(jobs, submit.Job{RunID: fmt.Sprintf("fleet-%d", i), Build: buildkite.NewBuild{
				Commit: "HEAD", Branch: "main", Steps: []any{map[string]any{"command": "x", "agents": map[string]string{"queue": fmt.Sprintf("q%d", i%20)}}},
			}})
		}
		measure("a hundred jobs", func() error {
			for _, out := range submit.Run(ctx, client, submit.Options{Target: submit.Target{Org: "kbnode", Pipeline: "kernelbot"}}, jobs) {
				if out.State != "passed" {
					return fmt.Errorf("%s is %s: %s", out.RunID, out.State, out.Reason)
				}
			}
			return nil
		})
		if s.Over() > 0 {
			t.Errorf("%d requests were over the limit", s.Over())
		}
	})
}

// asked counts an operator's requests so far.
func asked(s *bktest.Server) (n int) {
	for route, k := range s.Requests() {
		if strings.Contains(route, " /v2/") {
			n += k
		}
	}
	return n
}

// rates are the requests of agents by route: the mean per second, and the worst second.
type rates struct {
	last       map[string]int
	sum, worst map[string]int
	seconds    int
}

func (r *rates) watch(s *bktest.Server, during time.Duration) {
	r.sum, r.worst, r.seconds = map[string]int{}, map[string]int{}, int(during.Seconds())
	for range r.seconds {
		time.Sleep(time.Second)
		now := s.Requests()
		all := 0
		for route, n := range now {
			d := n - r.last[route]
			r.sum[route] += d
			r.worst[route] = max(r.worst[route], d)
			all += d
		}
		r.sum["all"] += all
		r.worst["all"] = max(r.worst["all"], all)
		r.last = now
	}
}

func (r *rates) String() string {
	var b strings.Builder
	for _, route := range slices.Sorted(maps.Keys(r.sum)) {
		if r.sum[route] > 0 {
			fmt.Fprintf(&b, "\n  %-20s %7.1f a second, %5d in the worst", route, float64(r.sum[route])/float64(r.seconds), r.worst[route])
		}
	}
	return b.String()
}
