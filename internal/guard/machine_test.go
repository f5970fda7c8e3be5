package guard

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestListen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "gpu0", "docker.sock")
	uid, gid := os.Getuid(), os.Getgid()
	first, err := listen(path, uid, gid)
	must.Do(t, err)
	// A guard that was killed leaves its socket.
	first.SetUnlinkOnClose(false)
	must.Do(t, first.Close())
	second, err := listen(path, uid, gid)
	must.Do(t, err)
	for file, want := range map[string]fs.FileMode{
		filepath.Dir(path):                          fs.ModeDir | 0o711,
		filepath.Join(filepath.Dir(path), agentDir): fs.ModeDir | 0o700,
		path: fs.ModeSocket | 0o660,
	} {
		info, err := os.Lstat(file)
		must.Do(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", file, info.Mode(), want)
		}
	}
	must.Do(t, second.Close())
	must.Do(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := listen(path, uid, gid); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("listens over a file: %v", err)
	}
}

// TestCallers answers only root and the slot's user, and root alone may start an agent and run any image.
func TestCallers(t *testing.T) {
	t.Parallel()
	g := &guard{policy: testPolicy(), uid: 990}
	g.policy.Images = []string{"^img$"}
	for name, row := range map[string]struct {
		peer   any
		in     bool
		images []string
	}{
		"the slot's user":  {&unix.Ucred{Uid: 990, Gid: 1}, true, g.policy.Images},
		"root":             {&unix.Ucred{Uid: 0}, true, nil},
		"somebody else":    {&unix.Ucred{Uid: 991, Gid: 990}, false, nil},
		"somebody unknown": {nil, false, nil},
	} {
		caller, err := g.caller(context.WithValue(t.Context(), peerKey{}, row.peer))
		if (err == nil) != row.in {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && !slices.Equal(g.policyFor(caller).Images, row.images) {
			t.Errorf("%s may run %q", name, g.policyFor(caller).Images)
		}
	}
}

// TestReports goes through the socket: the kernel reports who asks.
func TestReports(t *testing.T) {
	t.Parallel()
	for _, root := range []int{os.Getuid(), -1} {
		r := newRig(t, func(r *rig) { r.root = root })
		parked := filepath.Join(filepath.Dir(r.socket), slot.ParkedDir, "x.json")
		for _, row := range []struct {
			name, path string
			do         func()
			status     int
			message    string
		}{
			{"registered", slot.RegisteredPath, func() {}, 204, ""},
			{"ready", slot.ReadyPath, func() {}, 204, ""},
			{"parked", slot.ReadyPath, func() { r.put(t, parked, `{"reason":"maintenance"}`) }, 409, "maintenance"},
			{"a failure", slot.ReadyPath, func() { r.put(t, parked, "x") }, 502, "kbnode: read why the slot is parked"},
		} {
			row.do()
			if root < 0 && row.path == slot.ReadyPath { // as the slot's user
				row.status, row.message = 403, "kbnode: only the agent's unit may do this, before the agent starts"
			}
			if status, says := r.ask(t, "POST", row.path, ""); status != row.status || !strings.HasPrefix(says, row.message) || (says == "") != (row.message == "") {
				t.Errorf("%s: %d %q, want %d %q", row.name, status, says, row.status, row.message)
			}
		}
		_, err := os.Stat(filepath.Join(filepath.Dir(r.socket), slot.RegisteredName))
		must.Do(t, err)
	}
}

// TestRemountPts bounds terminals in another mount namespace, and never the host's.
func TestRemountPts(t *testing.T) {
	t.Parallel()
	must.Root(t, "needs root")
	if err := remountPts("/proc/self", 16); err == nil {
		t.Fatal("the host's terminals are limited")
	}
	// One that has chosen another root.
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", `mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts &&
		mount --bind / "$0" && chroot "$0" sh -c 'echo $$ && read x' && grep ' /dev/pts ' /proc/self/mountinfo`, t.TempDir())
	in, _ := cmd.StdinPipe()
	var out syncBuffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	must.Until(t, "the process", func() bool { return strings.Contains(out.String(), "\n") })
	s := slotProcs{root: t.TempDir(), proc: "/proc", slice: "s"}
	const absent = "4194305\n" // more than the kernel's greatest
	for _, list := range []string{absent, absent + out.String()} {
		must.Do(t, errors.Join(os.MkdirAll(s.container("x"), 0o700), os.WriteFile(filepath.Join(s.container("x"), "cgroup.procs"), []byte(list), 0o600)))
		if err := s.limitPtys("x"); (err == nil) != (list != absent) {
			t.Errorf("processes %q: %v", list, err)
		}
	}
	_, _ = in.Write([]byte("go\n"))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "gid=5,mode=620,ptmxmode=666,max=256") {
		t.Errorf("%v: %s", err, out.String())
	}
}
