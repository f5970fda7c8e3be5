package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// AgentDir is the directory beside the socket that belongs to the slot's user.
const AgentDir = "agent"

func lookupUser(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w; run kbnode reconcile", name, err)
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w", name, err)
	}
	if gid, err = strconv.Atoi(u.Gid); err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w", name, err)
	}
	return uid, gid, nil
}

// listen makes the slot's run directory, the agent's directory in it, which only
// the slot's user can enter, and the socket, which only its group can use.
func listen(path string, uid, gid int) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // the parent of all slots' directories holds no secret
		return nil, fmt.Errorf("create the run directory: %w", err)
	}
	err := errors.Join(
		ownDir(dir, 0o711, 0, 0),
		ownDir(filepath.Join(dir, AgentDir), 0o700, uid, gid),
	)
	if err != nil {
		return nil, fmt.Errorf("create the run directory: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on %s: it is not a socket; remove it", path)
	}
	// A guard that was killed leaves its socket behind.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := errors.Join(os.Chmod(path, 0o660), chown(path, 0, gid)); err != nil { //nolint:gosec // the slot's group is who it is for
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// ownDir makes a directory, or corrects the mode and owner of an existing one.
func ownDir(path string, mode fs.FileMode, uid, gid int) error {
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; remove it", path)
	}
	return errors.Join(os.Chmod(path, mode), chown(path, uid, gid))
}

// chown does nothing without root, as in tests.
func chown(path string, uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, uid, gid)
}

// peers accepts connections of root and the slot's user, cap(slots) at a time. The socket's mode
// allows the same, but also anyone who joins the group later.
type peers struct {
	*net.UnixListener
	allowed []int
	slots   chan struct{}
	log     *slog.Logger
	root    int // the user ID of root, except in tests
}

// Accept waits for a connection that may be served.
func (l *peers) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := peer(conn)
		if err == nil && slices.Contains(l.allowed, int(cred.Uid)) {
			// Waiting here leaves further clients in the kernel's queue.
			l.slots <- struct{}{}
			return &peerConn{UnixConn: conn, root: int(cred.Uid) == l.root, pid: int(cred.Pid), release: sync.OnceFunc(func() { <-l.slots })}, nil
		}
		if err != nil {
			l.log.Warn("connection refused", "err", err)
		} else {
			l.log.Warn("connection refused", "uid", cred.Uid, "pid", cred.Pid)
		}
		if err := conn.Close(); err != nil {
			l.log.Debug("connection closed", "err", err)
		}
	}
}

// peer returns the process that opened a connection, as the kernel recorded it.
func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cred, credErr
}

// peerConn gives its place back when it is closed.
type peerConn struct {
	*net.UnixConn
	root    bool
	pid     int
	release func()
}

func (c *peerConn) Close() error {
	defer c.release()
	return c.UnixConn.Close()
}

// agent returns the process of the agent that has a job run over this connection.
func (c *peerConn) agent() int {
	if c.root {
		return keeper.NoAgent
	}
	return c.pid
}

type peerKey struct{}

// notePeer records in a request's context who sends it.
func notePeer(ctx context.Context, conn net.Conn) context.Context {
	if p, ok := conn.(*peerConn); ok {
		return context.WithValue(ctx, peerKey{}, p)
	}
	return ctx
}

// policyFor returns the slot's policy. The node's root may run any image, as kbnode selftest does with
// one of its own; no other part of the policy differs for root.
func (g *guard) policyFor(ctx context.Context) plan.JobPolicy {
	p := g.policy
	if peer, ok := ctx.Value(peerKey{}).(*peerConn); ok && peer.root {
		p.Images = nil
	}
	return p
}
