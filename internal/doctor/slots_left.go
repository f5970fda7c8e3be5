package doctor

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
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
	seen := 0
	for _, s := range m.State.Slots {
		seen += len(s.Containers)
		for _, scope := range s.Containers {
			old := func(p host.Process) bool { return p.Age >= leftAfter }
			id := containerOf(scope)
			if s.Job == nil && id != "" && slices.ContainsFunc(m.Processes(ctx, s.Slice.Cgroup+"/"+scope), old) {
				all = append(all, warn("container %s runs without a job", id).Of(s.Index).By("docker rm -f %s", id))
			}
		}
	}
	// With the cgroupfs driver, Docker makes a slice's directory in its own cgroup.
	for _, pattern := range []string{"", "/*", "/*/*"} {
		for _, dir := range m.List(host.CgroupRoot + pattern + "/buildkite-gpu*.slice") {
			group := strings.TrimPrefix(dir, host.CgroupRoot)
			if k, ok := plan.OwnsUnit(path.Base(group)); ok && path.Dir(group) != "/"+plan.ParentSlice && len(m.Processes(ctx, group)) > 0 {
				all = append(all, fail("containers run in %s, where the slot's limits do not apply", group).Of(k).
					Advise("end them (sudo docker ps, sudo docker rm -f), and see docker-cgroup-driver above"))
			}
		}
	}
	return otherwise(all, ok("%d, of running jobs", seen))
}

func slotProcesses(ctx context.Context, m *Machine) Answer {
	users, err := reconcile.ReadUsers(m.Root)
	if err != nil {
		return found(warn("%s", err).Advise("check why /etc/passwd cannot be read"))
	}
	inside, slotOf := map[int]bool{}, map[int]int{} // by PID, by user ID
	left, outside := map[int][]host.Process{}, map[int][]host.Process{}
	for _, s := range m.State.Slots {
		if u := users[plan.UserName(s.Index)]; u.UID > 0 {
			slotOf[u.UID] = s.Index
		}
		if s.Slice.Cgroup == "" {
			continue
		}
		for _, p := range m.Processes(ctx, s.Slice.Cgroup) {
			inside[p.PID] = true
			first, _, _ := strings.Cut(p.Group, "/")
			// Another check covers containers, and kbnode's own programs end by themselves.
			if s.Job == nil && p.PID != s.Agent.MainPID && p.Age >= leftAfter && containerOf(first) == "" && !strings.HasPrefix(first, "kbnode-") {
				left[s.Index] = append(left[s.Index], p)
			}
		}
	}
	for _, pid := range m.PIDs() {
		if inside[pid] || ctx.Err() != nil {
			continue
		}
		if k, ours := slotOf[m.UID(pid)]; ours {
			if p := m.Process(pid); p.Age >= leftAfter {
				outside[k] = append(outside[k], p)
			}
		}
	}
	var all []Finding
	for _, k := range slices.Sorted(maps.Keys(left)) {
		all = append(all, ofProcesses(left[k], "runs without a job").Of(k))
	}
	for _, k := range slices.Sorted(maps.Keys(outside)) {
		all = append(all, ofProcesses(outside[k], fmt.Sprintf("of user %s runs outside the slot's slice, without its limits", plan.UserName(k))).Of(k))
	}
	return otherwise(all, ok("none"))
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
