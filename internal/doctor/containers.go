package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/selftest"
)

// containerCheck runs a container in each idle slot, as a job would.

func containerFindings(r selftest.SlotReport) []Finding {
	var all []Finding
	for _, c := range r.Checks {
		if !c.Held {
			f := fail("%s: saw %s", c.Tried, strings.ReplaceAll(c.Saw, "\n", "; ")).Of(r.Index)
			f.Advice = fmt.Sprintf("%s; sudo kbnode selftest --slot %d runs every test in this slot", c.Do, r.Index)
			all = append(all, f)
		}
	}
	return all
}

func slotsContainer(ctx context.Context, m *Machine) Answer {
	asking, cancel := ctx, context.CancelFunc(func() {})
	if end, bounded := ctx.Deadline(); bounded {
		// Keep the rest of the time for cleaning up.
		asking, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/4))
	}
	defer cancel()
	began := time.Now()
	reports, err := m.Source.Containers(asking, m)
	if errors.Is(err, context.DeadlineExceeded) {
		return found(fail("the containers did not end within %s: Docker is slow or hangs", time.Since(began).Round(time.Second)).
			Advise("see sudo journalctl -u docker -n 50; with more time: sudo kbnode doctor --only container --timeout 10m"))
	}
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see sudo journalctl -u docker -n 50"))
	}
	var all []Finding
	var well, left []int
	why := ""
	for _, r := range reports {
		if r.Skipped != "" {
			left, why = append(left, r.Index), r.Skipped
			continue
		}
		if r.Held() {
			well = append(well, r.Index)
		}
		all = append(all, containerFindings(r)...)
	}
	if len(well) > 0 {
		all = append(all, ok("its GPU, CPUs and memory").Of(well...))
	}
	if len(left) > 0 {
		all = append(all, skip("%s", why).Of(left...))
	}
	return Answer{Findings: all, Detail: "there is no slot"}
}
