// Package systemdtest is a systemd for tests: it records what it is asked and keeps the
// unit files, cgroup files and processes of a directory tree as systemd and the kernel
// would. It runs nothing.
package systemdtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Systemd is a recording systemd.Manager for one tree.
type Systemd struct {
	Root string
	// ReloadApplies makes a reload apply changed slice files to running slices, as
	// systemd 252 does. systemd 257 applies none.
	ReloadApplies bool
	// Listen makes sockets create their file.
	Listen bool
	// Hook, if set, is called with each word before it takes effect.
	Hook func(word string) error

	mu     sync.Mutex
	words  []string
	killed []string
	units  map[string]*unit // those that run, stop or failed
	pid    int
	asked  time.Time // when the last word was said: what Hook does comes after that
	// outdated is set by Enable and Disable: systemd then reports that all units need a
	// reload.
	outdated bool
}

type unit struct {
	text   string // of its file, when it was loaded
	active string
	since  time.Time
	pid    int
	cgroup string
	pre    bool // runs a program of ExecStartPre=, as pid
	post   bool // runs one of ExecStopPost=
	job    bool // runs a job
	jobPID int
	// implicit: it has no file. Systemd made it for the instances of a template.
	implicit bool
}

// New makes a tree with CPUs (in list format) and memory nodes, and a systemd
// for it.
func New(root, cpus, nodes string) (*Systemd, error) {
	s := &Systemd{Root: root, units: map[string]*unit{}, pid: 100}
	for _, f := range [][2]string{
		{"sys/fs/cgroup/cpuset.cpus.effective", cpus},
		{"sys/fs/cgroup/cpuset.mems.effective", nodes},
		{"proc/stat", "btime 1700000000"},
		{"etc/passwd", "root:x:0:0::/root:/bin/sh"},
		{"etc/group", "root:x:0:"},
	} {
		if err := s.put(f[0], f[1]+"\n"); err != nil {
			return nil, err
		}
	}
	return s, os.MkdirAll(filepath.Join(root, plan.UnitDir), 0o750)
}

// Words returns the words that changed something since the last call.
func (s *Systemd) Words() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	words := s.words
	s.words = nil
	return words
}

// Killed returns the units whose job was killed.
func (s *Systemd) Killed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.killed)
}

// addWord records a word. The caller holds mu.
func (s *Systemd) addWord(parts ...string) error {
	word := strings.Join(parts, " ")
	s.asked = time.Now()
	if s.Hook != nil {
		if err := s.Hook(word); err != nil {
			return err
		}
	}
	s.words = append(s.words, word)
	return nil
}

// each records a word with these units, and does what it says for each of them.
func (s *Systemd) each(verb string, names []string, do func(name string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.addWord(append([]string{verb}, names...)...)
	for _, name := range names {
		if err == nil {
			err = do(name)
		}
	}
	return err
}

// Units implements systemd.Manager.
func (s *Systemd) Units(_ context.Context, names ...string) ([]slot.Unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]slot.Unit, len(names))
	for i, name := range names {
		if strings.Contains(name, "@.") {
			return nil, fmt.Errorf("Unit name %s is missing the instance name", name) //nolint:staticcheck // systemd's words
		}
		text, onDisk := s.file(name)
		state := slot.Unit{Name: name, Load: "not-found", Active: "inactive", Sub: "dead"}
		if onDisk {
			state.Load, state.NeedReload = "loaded", s.outdated
		}
		if u := s.units[name]; u != nil {
			state.Active, state.Since, state.Started, state.MainPID, state.Cgroup = u.active, u.since, u.since, u.pid, u.cgroup
			state.NeedReload = u.text != text || s.outdated
			state.Sub, state.Result = "running", "success"
			if u.implicit {
				state.Load = "loaded"
			}
			if u.pre {
				state.Sub, state.ControlPID, state.MainPID = "start-pre", u.pid, 0
			}
			if u.post {
				state.Sub, state.MainPID = "stop-post", 0
			}
		}
		out[i] = state
	}
	return out, nil
}

// Loaded implements systemd.Manager.
func (s *Systemd) Loaded(_ context.Context, patterns ...string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Reload implements systemd.Manager.
func (s *Systemd) Reload(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.addWord("reload"); err != nil {
		return err
	}
	s.outdated = false
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		u := s.units[name]
		u.text, _ = s.file(name)
		if s.ReloadApplies && u.text != "" && strings.HasSuffix(name, ".slice") {
			if err := s.limit(u.cgroup, s.sliceSettings(name, u.text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Start implements systemd.Manager.
func (s *Systemd) Start(_ context.Context, names ...string) error {
	return s.each("start", names, func(name string) error {
		if err := s.start(name); err != nil {
			return &systemd.UnitError{Unit: name, Verb: "start", Err: err}
		}
		return nil
	})
}

func (s *Systemd) start(name string) error {
	if u := s.units[name]; u != nil && (u.active == "active" || u.pre) {
		return nil
	}
	text, ok := s.file(name)
	isSlice := strings.HasSuffix(name, ".slice")
	if !ok && !isSlice {
		return fmt.Errorf("unit %s not found", name)
	}
	u := &unit{text: text, active: "active", since: s.asked}
	if isSlice {
		parent := ""
		if i := strings.LastIndex(strings.TrimSuffix(name, ".slice"), "-"); i > 0 {
			outer := name[:i] + ".slice"
			if err := s.start(outer); err != nil {
				return err
			}
			parent = s.units[outer].cgroup
		}
		u.cgroup = parent + "/" + name
		if err := os.MkdirAll(filepath.Join(s.Root, "sys/fs/cgroup", u.cgroup), 0o750); err != nil {
			return err
		}
		s.units[name] = u
		return s.limit(u.cgroup, s.sliceSettings(name, text))
	}
	if slot, ok := plan.OwnsUnit(name); ok && slot >= 0 && s.Listen && name == plan.JobSocket(slot) {
		if err := s.listen(slot); err != nil {
			return err
		}
		u.since = time.Now()
	}
	if strings.HasSuffix(name, ".socket") { // no process of its own
		s.units[name] = u
		return nil
	}
	slice := setting(text, "Slice")
	if slice == "" {
		slice = "system.slice"
	}
	if err := s.start(slice); err != nil {
		return err
	}
	s.pid++
	u.pid, u.cgroup = s.pid, s.units[slice].cgroup+"/"+name
	s.units[name] = u
	env := strings.Join(settings(text, "Environment"), "\x00") + "\x00"
	return s.process(u, u.pid, env)
}

// process adds a process to the cgroup of a unit.
func (s *Systemd) process(u *unit, pid int, env string) error {
	dir := "proc/" + strconv.Itoa(pid)
	if err := s.put(dir+"/environ", env); err != nil {
		return err
	}
	if err := s.put(dir+"/stat", fmt.Sprintf("%d (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 %d 1\n", pid, pid)); err != nil {
		return err
	}
	procs := s.get("sys/fs/cgroup", u.cgroup, "cgroup.procs")
	return s.put("sys/fs/cgroup"+u.cgroup+"/cgroup.procs", strings.TrimSpace(procs+"\n"+strconv.Itoa(pid))+"\n")
}

// Restart implements systemd.Manager.
func (s *Systemd) Restart(_ context.Context, names ...string) error {
	return s.each("restart", names, func(name string) error {
		if err := s.end(name); err != nil {
			return err
		}
		return s.start(name)
	})
}

// Stop implements systemd.Manager. For an agent with a job, the deadline passes at
// once.
func (s *Systemd) Stop(_ context.Context, names ...string) error {
	return s.stop("stop", names)
}

// StartReboot implements systemd.Manager. Nothing but the record of the call changes.
func (s *Systemd) StartReboot(context.Context) error {
	return s.each("reboot", []string{"reboot.target"}, func(string) error { return nil })
}

// Drain implements systemd.Manager.
func (s *Systemd) Drain(_ context.Context, names ...string) error {
	return s.stop("drain", names)
}

func (s *Systemd) stop(verb string, names []string) error {
	return s.each(verb, names, func(name string) error {
		u := s.units[name]
		switch {
		case u == nil:
			return nil
		case u.job && setting(u.text, "KillMode") != "mixed":
			s.killed = append(s.killed, name)
		case u.job:
			u.active = "deactivating"
			if verb == "stop" {
				return &systemd.UnitError{Unit: name, Verb: verb, Err: context.DeadlineExceeded}
			}
			return nil
		}
		return s.end(name)
	})
}

// end removes what runs in a unit, and all units below a slice.
func (s *Systemd) end(name string) error {
	u := s.units[name]
	if u == nil {
		return nil
	}
	if u.cgroup == "" { // failed, or a socket
		delete(s.units, name)
		return s.close(name)
	}
	for _, other := range slices.Sorted(maps.Keys(s.units)) {
		if v := s.units[other]; v != nil && strings.HasPrefix(v.cgroup, u.cgroup+"/") {
			if v.job {
				s.killed = append(s.killed, other)
			}
			if err := s.end(other); err != nil {
				return err
			}
		}
	}
	delete(s.units, name)
	for _, pid := range []int{u.pid, u.jobPID} {
		if pid > 0 {
			if err := os.RemoveAll(filepath.Join(s.Root, "proc", strconv.Itoa(pid))); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(filepath.Join(s.Root, "sys/fs/cgroup", u.cgroup))
}

// Kill implements systemd.Manager. SIGQUIT and SIGKILL end an agent with its
// job.
func (s *Systemd) Kill(_ context.Context, name string, all bool, signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	who := "main"
	if all {
		who = "all"
	}
	if err := s.addWord("kill", name, who, signal.String()); err != nil {
		return err
	}
	if u := s.units[name]; u != nil && u.job {
		s.killed = append(s.killed, name)
		u.job = false
		return s.end(name)
	}
	return nil
}

// ResetFailed implements systemd.Manager.
func (s *Systemd) ResetFailed(_ context.Context, name string) error {
	return s.each("reset-failed", []string{name}, func(string) error {
		if u := s.units[name]; u != nil && u.active == "failed" {
			delete(s.units, name)
		}
		return nil
	})
}

// Enable implements systemd.Manager.
func (s *Systemd) Enable(_ context.Context, names ...string) error {
	return s.each("enable", names, func(name string) error {
		s.outdated = true
		text, _ := s.file(name)
		for _, target := range settings(text, "WantedBy") {
			dir := filepath.Join(s.Root, plan.UnitDir, target+".wants")
			if err := os.MkdirAll(dir, 0o750); err != nil {
				return err
			}
			if err := os.Symlink(path.Join(plan.UnitDir, name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
				return err
			}
		}
		return nil
	})
}

// Disable implements systemd.Manager.
func (s *Systemd) Disable(_ context.Context, names ...string) error {
	return s.each("disable", names, func(name string) error {
		s.outdated = true
		links, err := filepath.Glob(filepath.Join(s.Root, plan.UnitDir, "*.wants", name))
		for _, l := range links {
			err = errors.Join(err, os.Remove(l))
			_ = os.Remove(filepath.Dir(l)) // when it was the last
		}
		return err
	})
}
