package reconcile_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner/program"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// A link that someone puts in place of a directory between the look and the write is not
// followed.
func TestPlantedLink(t *testing.T) {
	t.Parallel()
	must.Root(t, "root's links are trusted, and there are no others")
	m := installed(t, 1)
	p := slots(1).again().plan(t)
	p.Files = append(p.Files, plan.File{Path: plan.AgentDir(0) + "/new", Mode: 0o644, Owner: "root", Content: header, Slot: 0})
	elsewhere := t.TempDir()
	_, err := m.tryAfter(p, func() {
		at := filepath.Join(m.h.Root, plan.AgentDir(0))
		must.Do(t, errors.Join(os.RemoveAll(at), os.Symlink(elsewhere, at), os.Lchown(at, 4242, 4242)))
	})
	must.Err(t, err, "a symbolic link that root did not create")
	if left, _ := os.ReadDir(elsewhere); len(left) > 0 {
		t.Errorf("written through the link: %v", left)
	}
}

// A mode is set on what is at the path.
func TestChmodFollowsNoLink(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(1).plan(t)
	m.apply(p)
	hook := filepath.Join(m.h.Root, plan.HooksDir, "environment")
	other := filepath.Join(t.TempDir(), "other")
	must.Do(t, errors.Join(os.Chmod(hook, 0o700), os.WriteFile(other, nil, 0o600)))
	_, err := m.tryAfter(p, func() {
		must.Do(t, errors.Join(os.Remove(hook), os.Symlink(other, hook)))
	})
	if !errors.Is(err, syscall.ELOOP) {
		t.Errorf("error is %v", err)
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the target has mode %v, %v", info.Mode(), err)
	}
}

// What is mounted in a deleted directory stays as it is.
func TestUnmountBeforeRemoval(t *testing.T) {
	t.Parallel()
	m := installed(t, 2)
	source := t.TempDir()
	at := filepath.Join(m.h.Root, plan.WorkDir(1), "mnt")
	must.Do(t, errors.Join(os.WriteFile(filepath.Join(source, "a"), nil, 0o600), os.Mkdir(at, 0o700)))
	if err := unix.Mount(source, at, "", unix.MS_BIND, ""); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	m.apply(slots(1).plan(t))
	if _, err := os.Stat(filepath.Join(source, "a")); err != nil || m.exists(plan.WorkDir(1)) {
		t.Errorf("what was mounted is gone: %v", err)
	}
}

// Nested directories, as a job may make them, are removed with few open at a time.
func TestRemoveDeepTree(t *testing.T) {
	m := installed(t, 2)
	fd, err := unix.Open(filepath.Join(m.h.Root, plan.WorkDir(1)), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range 3000 {
		below := -1
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o700)
		}
		if err == nil {
			below, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		fd = below
	}
	var limit unix.Rlimit
	if err = errors.Join(err, unix.Close(fd), unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		t.Fatal(err)
	}
	// Not parallel: the limit is the process's.
	must.Do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: limit.Max}))
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
	m.apply(slots(1).plan(t))
	m.wantAbsent(plan.WorkDir(1))
}

// A file is durable in its directory before anything relies on it.
func TestRenameLasts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	var steps []string
	m.h.OnStep(func(words string) error { steps = append(steps, words); return nil })
	m.apply(slots(1).plan(t))
	for i, s := range steps {
		if name, ok := strings.CutPrefix(s, "rename "); ok && (i+1 == len(steps) || steps[i+1] != "sync "+filepath.Dir(name)) {
			t.Errorf("%s is not made to last: %v", name, steps[i+1:min(i+2, len(steps))])
		}
	}
}

// One lock excludes another. One on a file that its last holder deleted keeps no one out, so
// it does not count.
func TestLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	tries := 0
	m.h.OnStep(func(words string) error {
		tries++
		if words == "flock "+plan.LockPath && tries == 1 {
			return os.Remove(filepath.Join(m.h.Root, plan.LockPath))
		}
		return nil
	})
	release, err := m.h.Lock()
	must.Do(t, err)
	_, err = m.h.Lock()
	if locked, ok := errors.AsType[*reconcile.LockedError](err); !ok || locked.PID == "" {
		t.Errorf("second lock: %v", err)
	}
	release()
	m.wantAbsent(plan.LockPath)
	if release, err = m.h.Lock(); err != nil {
		t.Fatal(err)
	}
	release()
}

// Each limit that someone removed is set again.
func TestEveryLimit(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(1).plan(t)
	m.apply(p)
	m.sd.Words()
	for file, text := range map[string]string{"pids.max": "max", "memory.max": "max", "memory.swap.max": "max", "cpuset.cpus.effective": "0-127", "cpuset.mems.effective": "0-1"} {
		m.write("/sys/fs/cgroup/buildkite.slice/buildkite-gpu0.slice/"+file, text+"\n")
		if _, words := m.apply(p); !slices.Equal(words, []string{setWord(0, "2-3", 1<<30)}) {
			t.Errorf("%s: %q", file, words)
		}
	}
}

// A stopping agent may still have a job, so its slot counts as busy.
func TestStoppingAgentIsBusy(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	m.run(0)
	must.Do(t, m.sd.Drain(t.Context(), plan.AgentUnit(0)))
	m.sd.Words()
	procs, err := filepath.Glob(filepath.Join(m.h.Root, "proc/*/environ"))
	must.Do(t, err)
	for _, name := range procs { // between two processes of the job
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), "BUILDKITE_JOB_ID") {
			must.Do(t, os.WriteFile(name, nil, 0o600))
		}
	}
	next := slots(1).memory(2 << 30).again()
	r, words := m.apply(next.plan(t))
	equal(t, "words", []string{"reload"}, words)
	equal(t, "why", map[string]bool{"waits for the agent of slot gpu0 to stop": true}, deferred(r.Deferred, 0))
}

// TestEmbeddedProgram checks that kbnode's program for jobs is written, and restored if its
// content changes.
func TestEmbeddedProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := slots(1).plan(t)
	p.Files = append(p.Files, plan.File{Path: plan.RunnerCopy, Mode: 0o755, Owner: "root", SHA256: program.Digest(), Slot: -1})
	if program.Digest() == program.Missing { // make build embeds it
		err := m.try(p)
		must.Err(t, err, "built without the program")
		return
	}
	m.apply(p)
	name := filepath.Join(m.h.Root, plan.RunnerCopy)
	want, err := os.ReadFile(name)
	if err != nil || fmt.Sprintf("%x", sha256.Sum256(want)) != program.Digest() {
		t.Fatalf("%d bytes, %v", len(want), err)
	}
	m.settled(p)
	must.Do(t, os.WriteFile(name, append([]byte{0}, want[1:]...), 0o755))
	m.apply(p)
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestHiddenFiles removes the temporary files of writes that ended early, and no operator's copies.
func TestHiddenFiles(t *testing.T) {
	t.Parallel()
	m := installed(t, 1)
	for _, name := range []string{plan.HooksDir + "/.old.v2", plan.HooksDir + "/.pre-exit-20251127101500", plan.AgentDir(0) + "/.notes1"} {
		m.write(name, "mine\n")
	}
	left := plan.HooksDir + "/.pre-exit5577006791947779410"
	m.write(left, "")
	_, changes := m.diff(slots(1).plan(t))
	if len(changes) != 1 || changes[0].Kind != reconcile.Delete || changes[0].Subject != left {
		t.Errorf("changes: %v", changes)
	}
}
