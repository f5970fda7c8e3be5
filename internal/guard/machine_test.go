package guard

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
)

func TestSlicePath(t *testing.T) {
	t.Parallel()
	for slice, want := range map[string]string{
		"buildkite.slice":      "buildkite.slice",
		"buildkite-gpu0.slice": "buildkite.slice/buildkite-gpu0.slice",
		"a-b-c.slice":          "a.slice/a-b.slice/a-b-c.slice",
	} {
		if got := plan.SliceCgroup(slice); got != want {
			t.Errorf("%s is at %s, want %s", slice, got, want)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "gpu0", "docker.sock")
	uid, gid := os.Getuid(), os.Getgid()
	first, err := listen(path, uid, gid)
	if err != nil {
		t.Fatal(err)
	}
	// A guard that was killed leaves its socket.
	first.SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := listen(path, uid, gid)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]fs.FileMode{
		filepath.Dir(path):                          fs.ModeDir | 0o711,
		filepath.Join(filepath.Dir(path), AgentDir): fs.ModeDir | 0o700,
		path: fs.ModeSocket | 0o660,
	} {
		info, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", file, info.Mode(), want)
		}
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path, uid, gid); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("listens over a file: %v", err)
	}
}

// TestPeers admits only the listed users: a connection of any other user is closed before a byte
// is read.
func TestPeers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		allowed []int
		in      bool
	}{
		"the slot's user": {[]int{os.Getuid()}, true},
		"somebody else":   {[]int{os.Getuid() + 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			p := &peers{UnixListener: l, allowed: row.allowed, slots: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler)}
			accepted := make(chan net.Conn, 1)
			go func() {
				if conn, err := p.Accept(); err == nil {
					accepted <- conn
				}
			}()
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			if !row.in {
				if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the connection is open: %v", err)
				}
				return
			}
			if err := (<-accepted).Close(); err != nil {
				t.Error(err)
			}
			if len(p.slots) != 0 {
				t.Error("the connection's place was not given back")
			}
		})
	}
}

// TestRootRunsAnyImage checks that only root is exempt, and only from the list of images.
func TestRootRunsAnyImage(t *testing.T) {
	t.Parallel()
	g := &guard{policy: testPolicy()}
	g.policy.Images = []string{"^img$"}
	for name, row := range map[string]struct {
		conn net.Conn
		want []string
	}{
		"the slot's user":  {&peerConn{}, g.policy.Images},
		"root":             {&peerConn{root: true}, nil},
		"somebody unknown": {&net.UnixConn{}, g.policy.Images},
	} {
		got := g.policyFor(notePeer(t.Context(), row.conn))
		want := g.policy
		want.Images = row.want
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
