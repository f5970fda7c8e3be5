package systemdtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

const runtimeDir = "/run/systemd/system.control"

// sliceSettings returns the settings of a slice file and of the drop-ins that
// SetProperties left, which override it.
func (s *Systemd) sliceSettings(name, text string) map[string]string {
	out := map[string]string{}
	for _, key := range []string{"AllowedCPUs", "AllowedMemoryNodes", "MemoryMax", "MemorySwapMax", "TasksMax"} {
		dropIn := s.get(runtimeDir, name+".d", "50-"+key+".conf")
		if v := cmp.Or(setting(dropIn, key), setting(text, key)); v != "" {
			out[key] = v
		}
	}
	return out
}

// limit writes the files of a cgroup as the kernel would.
func (s *Systemd) limit(cgroup string, set map[string]string) error {
	dir := "sys/fs/cgroup" + cgroup
	for _, f := range []struct{ key, file, effective string }{
		{"AllowedCPUs", "cpuset.cpus", "cpuset.cpus.effective"},
		{"AllowedMemoryNodes", "cpuset.mems", "cpuset.mems.effective"},
	} {
		if v, ok := set[f.key]; ok {
			if err := s.put(dir+"/"+f.file, v+"\n"); err != nil {
				return err
			}
		}
		parent, err := cpuset.Parse(s.get(path.Dir(dir), f.effective))
		if err != nil {
			return err
		}
		own, err := cpuset.Parse(s.get(dir, f.file))
		if err != nil {
			return err
		}
		// What a cgroup asks for and its parent does not have is left out.
		if got := own.Intersect(parent); got.Len() > 0 {
			parent = got
		}
		if err := errors.Join(s.put(dir+"/"+f.file, own.String()+"\n"), s.put(dir+"/"+f.effective, parent.String()+"\n")); err != nil {
			return err
		}
	}
	for key, file := range map[string]string{"MemoryMax": "memory.max", "MemorySwapMax": "memory.swap.max", "TasksMax": "pids.max"} {
		v := set[key]
		if v == "" || v == "infinity" {
			v = "max"
		}
		if err := s.put(dir+"/"+file, v+"\n"); err != nil {
			return err
		}
	}
	if partition := dir + "/cpuset.cpus.partition"; s.get(partition) == "" {
		return s.put(partition, "member\n")
	}
	return nil
}

// SetProperties implements systemd.Manager.
func (s *Systemd) SetProperties(_ context.Context, name string, properties ...systemd.Property) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	word := []string{"set", name}
	dropIns := map[string]string{}
	for _, p := range properties {
		text, err := render(p)
		if err != nil {
			return err
		}
		if _, cleared := dropIns[p.Name]; p.Name == "DeviceAllow" && text != "DeviceAllow=" && !cleared {
			// Lines are added to the existing ones.
			there := strings.TrimPrefix(s.get(runtimeDir, name+".d", "50-DeviceAllow.conf"), "[Slice]\n")
			dropIns[p.Name] = there + "\n" + strings.TrimPrefix(text, "DeviceAllow=\n")
		} else {
			dropIns[p.Name] = text
		}
		if p.Name != "DeviceAllow" || text != "DeviceAllow=" {
			word = append(word, strings.ReplaceAll(strings.TrimPrefix(text, "DeviceAllow=\n"), "\n", " "))
		}
	}
	if err := s.addWord(word...); err != nil {
		return err
	}
	u := s.units[name]
	if u == nil {
		return fmt.Errorf("unit %s not loaded", name)
	}
	for key, text := range dropIns {
		if err := s.put(path.Join(runtimeDir, name+".d", "50-"+key+".conf"), "[Slice]\n"+text+"\n"); err != nil {
			return err
		}
	}
	return s.limit(u.cgroup, s.sliceSettings(name, u.text))
}

// members returns a mask of bytes as Linux lists it.
func members(mask []byte) string {
	var ids []int
	for i := range 8 * len(mask) {
		if mask[i/8]>>(i%8)&1 == 1 {
			ids = append(ids, i)
		}
	}
	return cpuset.Of(ids...).String()
}

// render formats a property as systemd writes it to a drop-in.
func render(p systemd.Property) (string, error) {
	switch v := p.Value.(type) {
	case string:
		return p.Name + "=" + v, nil
	case uint64:
		if v == math.MaxUint64 {
			return p.Name + "=infinity", nil
		}
		return p.Name + "=" + strconv.FormatUint(v, 10), nil
	case []byte:
		return p.Name + "=" + members(v), nil
	case []systemd.DeviceAllow:
		lines := []string{p.Name + "="}
		for _, d := range v {
			lines = append(lines, p.Name+"="+d.Path+" "+d.Perm)
		}
		return strings.Join(lines, "\n"), nil
	}
	return "", fmt.Errorf("property %s has a value of type %T, which systemd would refuse", p.Name, p.Value)
}

// RunJob makes the agent of a slot run a job.
func (s *Systemd) RunJob(slot int, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.units[plan.AgentUnit(slot)]
	if u == nil {
		return fmt.Errorf("agent of slot %d does not run", slot)
	}
	if slice := plan.JobSlice(slot); s.units[plan.JobSocket(slot)] != nil && s.units[slice] == nil { // of the instance that the job's request started
		s.units[slice] = &unit{active: "active", cgroup: "/system.slice/" + slice, implicit: true}
	}
	s.pid++
	u.job, u.jobPID = true, s.pid
	return s.process(u, u.jobPID, "BUILDKITE_JOB_ID="+id+"\x00")
}

// Prepare takes a slot's agent back to where its slot is cleared, or is parked.
func (s *Systemd) Prepare(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[plan.AgentUnit(slot)]; u != nil {
		u.active, u.pre = "activating", true
	}
}

// Clear takes a slot's agent to where it has ended, and its slot is cleared.
func (s *Systemd) Clear(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[plan.AgentUnit(slot)]; u != nil {
		u.active, u.post = "deactivating", true
	}
}

// FinishJob ends the job of a slot; an agent that was asked to stop stops.
func (s *Systemd) FinishJob(slot int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := plan.AgentUnit(slot)
	u := s.units[name]
	if u == nil || !u.job {
		return fmt.Errorf("agent of slot %d runs no job", slot)
	}
	u.job = false
	if u.active == "deactivating" {
		return s.end(name)
	}
	return errors.Join(
		os.RemoveAll(filepath.Join(s.Root, "proc", strconv.Itoa(u.jobPID))),
		s.put("sys/fs/cgroup"+u.cgroup+"/cgroup.procs", strconv.Itoa(u.pid)+"\n"))
}

// Fail makes a unit fail, as if its main process had ended.
func (s *Systemd) Fail(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.end(name); err != nil {
		return err
	}
	text, _ := s.file(name)
	s.units[name] = &unit{text: text, active: "failed"}
	return nil
}

// Reboot ends everything that runs and empties /run.
func (s *Systemd) Reboot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.units) > 0 {
		for name := range s.units {
			s.units[name].job = false
			if err := s.end(name); err != nil {
				return err
			}
			break
		}
	}
	return os.RemoveAll(filepath.Join(s.Root, "run"))
}

// Users are users in a tree's /etc/passwd, without useradd.
type Users struct{ Root string }

// Add implements reconcile.Users.
func (u Users) Add(_ context.Context, add plan.User) error {
	users, err := host.Tree{Root: u.Root}.Users()
	if err != nil {
		return err
	}
	if _, ok := users[add.Name]; ok {
		return fmt.Errorf("user %s already exists", add.Name)
	}
	id := 900
	for _, other := range users {
		id = max(id, other.UID+1)
	}
	return u.edit(func(lines []string) []string {
		return append(lines, fmt.Sprintf("%s:x:%d:%d::%s:/usr/sbin/nologin", add.Name, id, id, add.Home))
	})
}

// Remove implements reconcile.Users.
func (u Users) Remove(_ context.Context, name string) error {
	return u.edit(func(lines []string) []string {
		return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+":") })
	})
}

func (u Users) edit(change func([]string) []string) error {
	name := filepath.Join(u.Root, "etc/passwd")
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := change(strings.Split(strings.TrimSpace(string(data)), "\n"))
	return os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}
