package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/selftest"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// ofProcesses names the first process, and ends all.
func ofProcesses(list []host.Process, what string) Finding {
	text, kill := fmt.Sprintf("%s %s", list[0], what), "kill -9"
	if n := len(list) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	for _, p := range list {
		kill += " " + strconv.Itoa(p.PID)
	}
	if len(list) > 20 {
		return warn("%s", text).Advise("see systemd-cgls, and end them")
	}
	return warn("%s", text).By("%s", kill)
}

// slotGPUProcesses leaves out a slot's own processes: they are a job's, or its service ends them.
func slotGPUProcesses(_ context.Context, m *Machine) Answer {
	var all []Finding
	checked := 0
	for _, g := range m.Inventory.GPUs {
		slots := slotsOn(m.Plan, g)
		if slots == nil {
			continue
		}
		checked++
		pids, err := m.computeOn(g)
		if err != nil {
			all = append(all, skip("%s", err).Of(slots...))
		}
		var list []host.Process
		for _, pid := range pids {
			// If a process that has ended still holds the GPU, the slot is parked.
			p, cgroup := m.Process(pid), m.Cgroup(pid)
			own := slices.ContainsFunc(slots, func(k int) bool { return strings.HasPrefix(cgroup+"/", "/"+plan.SliceCgroup(plan.SliceName(k))+"/") })
			if p.Name != "" && !own {
				list = append(list, p)
			}
		}
		if len(list) > 0 {
			found := ofProcesses(list, "computes on "+g.PCI)
			found.Status = Fail
			all = append(all, found.Of(slots...))
		}
	}
	return foundOr(all, ok("%d GPUs", checked))
}

// computeOn returns the processes that compute on a GPU or partition, as far as its driver
// knows.
func (m *Machine) computeOn(g inventory.GPU) (pids []int, err error) {
	if g.Vendor == "amd" {
		o, err := detect.AMDOccupied(m.Root, []string{fmt.Sprintf("/dev/dri/renderD%d", g.RenderMinor)})
		for _, p := range o.Compute {
			pids = append(pids, int(p.PID))
		}
		return pids, err
	}
	if g.NVML == nil || g.NVML.Unlisted {
		return nil, fmt.Errorf("NVML does not list the processes of GPU %s", g.PCI)
	}
	for _, p := range g.NVML.Processes {
		pids = append(pids, int(p.PID))
	}
	return pids, nil
}

// slotsOn returns the slots that have a GPU, a partition or MIG instances of it.
func slotsOn(p *plan.Plan, g inventory.GPU) (slots []int) {
	for _, s := range p.Slots {
		if slices.ContainsFunc(s.GPUs, func(own plan.SlotGPU) bool { return isGPU(own, g) }) {
			slots = append(slots, s.Index)
		}
	}
	return slots
}

func isGPU(own plan.SlotGPU, g inventory.GPU) bool {
	return g.Partition == own.Partition && (own.UUID != "" && g.UUID == own.UUID || own.UUID == "" && g.PCI == own.PCI)
}

func slotsContainer(ctx context.Context, m *Machine) Answer {
	asking, cancel := ctx, context.CancelFunc(func() {})
	if end, bounded := ctx.Deadline(); bounded {
		// Keep the rest of the time for cleaning up.
		asking, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/4))
	}
	defer cancel()
	began := time.Now()
	reports, err := m.Source.Containers(asking, m, true)
	if errors.Is(err, context.DeadlineExceeded) {
		return found(fail("the containers did not end within %s: Docker is slow or hangs", time.Since(began).Round(time.Second)).
			Advise("see sudo journalctl -u docker -n 50; with more time: sudo kbnode doctor --only container --timeout 10m"))
	}
	return slotReports(reports, err, func(selftest.SlotReport) string { return "its GPU, CPUs and memory" })
}

// slotsEscape runs containers that try to escape.
func slotsEscape(ctx context.Context, m *Machine) Answer {
	reports, err := m.Source.Containers(ctx, m, false)
	return slotReports(reports, err, func(r selftest.SlotReport) string { return fmt.Sprintf("%d attempts, all blocked", len(r.Checks)) })
}

func slotReports(reports []selftest.SlotReport, err error, well func(selftest.SlotReport) string) Answer {
	if errors.Is(err, selftest.ErrRuns) {
		return none("%s", err)
	}
	if err != nil {
		return found(fail("%s", lines(err)).Advise("see sudo journalctl -u docker -n 50"))
	}
	var all []Finding
	for _, r := range reports {
		for _, c := range r.Checks {
			if !c.Held {
				all = append(all, fail("%s: saw %s", c.Tried, strings.ReplaceAll(c.Saw, "\n", "; ")).Of(r.Index).Advise("%s", c.Do))
			}
		}
		switch {
		case r.Skipped != "":
			all = append(all, skip("%s", r.Skipped).Of(r.Index))
		case r.Held():
			all = append(all, ok("%s", well(r)).Of(r.Index))
		}
	}
	return Answer{Findings: together(all), Detail: "there is no slot"}
}
