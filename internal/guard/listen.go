package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// agentDir is the directory beside the socket that belongs to the slot's user.
const agentDir = "agent"

// listen makes the slot's run directory, the agent's directory in it, which only
// the slot's user can enter, and the socket, which only its group can use.
func listen(path string, uid, gid int) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // the parent of all slots' directories holds no secret
		return nil, fmt.Errorf("create the run directory: %w", err)
	}
	err := errors.Join(
		ownDir(dir, 0o711, 0, 0),
		ownDir(filepath.Join(dir, agentDir), 0o700, uid, gid),
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

type peerKey struct{}

// notePeer records in the context of a connection's requests who has opened it, by the kernel.
func notePeer(ctx context.Context, conn net.Conn) context.Context {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || peer == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// caller returns the process that sends a request: root's, or one of the slot's user. The socket's mode
// allows the same, but also anyone who joins the group later.
func (g *guard) caller(ctx context.Context) (*unix.Ucred, error) {
	peer, ok := ctx.Value(peerKey{}).(*unix.Ucred)
	if !ok || !g.isRoot(peer) && int(peer.Uid) != g.uid {
		return nil, forbid("only root and the slot's user may use this socket; leave it to kbnode")
	}
	return peer, nil
}

func (g *guard) isRoot(peer *unix.Ucred) bool { return int(peer.Uid) == g.root }

// policyFor returns the slot's policy. The node's root may run any image, as kbnode selftest does with
// one of its own; no other part of the policy differs for root.
func (g *guard) policyFor(caller *unix.Ucred) plan.JobPolicy {
	p := g.policy
	if g.isRoot(caller) {
		p.Images = nil
	}
	return p
}
