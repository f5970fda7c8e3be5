package keeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOutside ends what runs as the slot's user outside the slot's limits, and nothing of anyone
// else's.
func TestOutside(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.procs.uid = 990
	r.put(filepath.Join(r.procs.proc, "self/x"), "")
	for pid, p := range map[int]struct{ cgroup, uids, namespace string }{
		301: {"user.slice/user-990.slice/user@990.service/init.scope", "990 990 990 990", "host"},
		302: {"user.slice/user-990.slice/session-1.scope", "990 990 990 990", "its own"},
		303: {"system.slice/cron.service", "990 990 990 990", "host"},
		304: {"system.slice/dbus.service", "0 990 0 0", "host"},
		310: {"buildkite.slice/buildkite-gpu3.slice/docker-ab.scope", "990 990 990 990", "its own"}, // a user of an image
		311: {"system.slice/docker-cd.scope", "990 990 990 990", "its own"},
		312: {"system.slice/ssh.service", "0 0 0 0", "host"},
		313: {"user.slice/user-991.slice/session-1.scope", "991 991 991 991", "host"},
		314: {"user.slice/user-990.slice/user@990.service/init.scope", "0 0 0 0", "host"},
		315: {"buildkite.slice/buildkite-gpu0.slice/docker-ef.scope", "990 990 990 990", "host"},
	} {
		r.start(pid, 1, p.cgroup)
		r.status(pid, "Uid:", p.uids)
		r.link(pid, p.namespace)
	}
	for _, pid := range []string{"self", strconv.Itoa(agentPID)} {
		if err := os.MkdirAll(filepath.Join(r.procs.proc, pid, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("host", filepath.Join(r.procs.proc, "self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.procs.endOutside(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(r.killed)
	if want := []int{301, 302, 303, 304}; !slices.Equal(r.killed, want) {
		t.Errorf("killed %v, want %v", r.killed, want)
	}
	// If the user is unknown, no process counts as the user's, least of all one of root.
	r.killed, r.procs.uid = nil, 0
	if n, err := r.procs.endOutside(t.Context()); n != 0 || err != nil || len(r.killed) > 0 {
		t.Errorf("killed %v, %v", r.killed, err)
	}
}

func (r *slotRig) link(pid int, namespace string) {
	r.t.Helper()
	dir := filepath.Join(r.procs.proc, strconv.Itoa(pid), "ns")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(namespace, filepath.Join(dir, "pid")); err != nil {
		r.t.Fatal(err)
	}
}

// TestOutsideParks: such a process parks the slot if it does not end.
func TestOutsideParks(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.procs.uid = 990
	r.start(301, 1, "user.slice/user-990.slice/user@990.service/init.scope")
	r.status(301, "Uid:", "990 990 990 990")
	r.want(r.begin, "")
	if !slices.Contains(r.killed, 301) {
		t.Error("the job began beside a process of its user")
	}
}

// TestSignalLooksAgain: between the list and the kill a PID may become another process's.
func TestSignalLooksAgain(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	var s slotProcs
	if err := s.signal(cmd.Process.Pid, unix.SIGKILL, func(int) bool { return false }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		t.Fatal("a process was killed that is not the slot's any more")
	case <-time.After(100 * time.Millisecond):
	}
	if err := s.signal(cmd.Process.Pid, unix.SIGKILL, func(pid int) bool { return pid == cmd.Process.Pid }); err != nil {
		t.Fatal(err)
	}
	<-ended
}
