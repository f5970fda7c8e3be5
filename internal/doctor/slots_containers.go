package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// leftAfter is the age from which something in an idle slot counts as left behind. A job or
// another check may have started since the slot was seen idle.
const leftAfter = 10 * time.Second

// containerOf returns the short ID of the container of a scope, or "".
func containerOf(scope string) string {
	id, ok := strings.CutPrefix(strings.TrimSuffix(scope, ".scope"), "docker-")
	if !ok || len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id[:12]
}

// slotContainers uses what was observed before any check could start a container.
func slotContainers(ctx context.Context, m *Machine) Answer {
	var all []Finding
	count := 0
	for _, s := range m.State.Slots {
		count += len(s.Containers)
		for _, scope := range s.Containers {
			old := func(p host.Process) bool { return p.Age >= leftAfter }
			id := containerOf(scope)
			if s.Job == nil && id != "" && slices.ContainsFunc(m.Processes(ctx, s.Slice.Cgroup+"/"+scope), old) {
				all = append(all, warn("container %s runs without a job", id).Of(s.Index).By("docker rm -f %s", id))
			}
		}
	}
	return foundOr(all, ok("%d, of running jobs", count))
}

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
			// If a process that has ended still holds the GPU, the guard parks the slot.
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
		o, err := inventory.AMDOccupied(m.Root, []string{fmt.Sprintf("/dev/dri/renderD%d", g.RenderMinor)})
		for _, p := range o.Compute {
			pids = append(pids, int(p.PID))
		}
		return pids, err
	}
	if g.NVML != nil {
		for _, p := range g.NVML.Processes {
			pids = append(pids, int(p.PID))
		}
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
		for _, c := range r.Checks {
			if !c.Held {
				all = append(all, fail("%s: saw %s", c.Tried, strings.ReplaceAll(c.Saw, "\n", "; ")).Of(r.Index).
					Advise("%s; sudo kbnode selftest --slot %d runs every test in this slot", c.Do, r.Index))
			}
		}
	}
	if len(well) > 0 {
		all = append(all, ok("its GPU, CPUs and memory").Of(well...))
	}
	if len(left) > 0 {
		all = append(all, skip("%s", why).Of(left...))
	}
	return Answer{Findings: all, Detail: "there is no slot"}
}
