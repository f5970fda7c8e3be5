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

func TestResolver(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	root := filepath.Join(top, "gpu-0")
	for _, dir := range []string{"gpu-0/builds/eval", "gpu-01/builds", "gpu-1/builds"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"gpu-0/out":          "/",
		"gpu-0/neighbour":    "../gpu-1/builds",
		"gpu-0/inside":       "builds/eval",
		"gpu-0/self":         ".",
		"gpu-0/builds/chain": "../out/etc",
		"gpu-0/loop":         "loop",
		"linked":             "gpu-0",
	} {
		if err := os.Symlink(target, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(root, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct{ path, want string }{
		"a directory":                 {root + "/builds/eval", root + "/builds/eval"},
		"a file":                      {root + "/file", root + "/file"},
		"a link that stays inside":    {root + "/inside", root + "/builds/eval"},
		"the root by another way":     {top + "/linked/builds", root + "/builds"},
		"a link to the host's root":   {root + "/out", ""},
		"through a link to the host":  {root + "/out/etc", ""},
		"a link to a link":            {root + "/builds/chain", ""},
		"a link to the neighbour":     {root + "/neighbour", ""},
		"a link to the root itself":   {root + "/self", ""},
		"the root itself":             {root, ""},
		"a name with the same start":  {top + "/gpu-01/builds", ""},
		"the host":                    {"/etc", ""},
		"nothing on the host":         {"/nonexistent/x", ""},
		"nothing inside":              {root + "/builds/new", ""},
		"a loop":                      {root + "/loop", ""},
		"a socket":                    {root + "/s", ""},
		"nothing behind a link out":   {root + "/out/nonexistent", ""},
		"a directory with a slash":    {root + "/builds/", root + "/builds"},
		"a way out and in, unclean":   {root + "/builds/../../gpu-1/builds", ""},
		"a way out through link dots": {root + "/inside/../../../gpu-1/builds", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := resolver(root)(row.path)
			if got != row.want || (err == nil) != (row.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, row.want)
			}
			if err != nil && !strings.Contains(err.Error(), "below "+root) {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

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
