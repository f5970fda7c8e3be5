package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// bodyDeadline is how long a client has to send the body of a request.
	bodyDeadline = 30 * time.Second
	// answerDeadline is how long a client has to read the end of an answer.
	answerDeadline = 30 * time.Second
)

// refusal is an error with a status and a sentence that the client gets.
type refusal struct {
	status   int
	sentence string
}

func (r refusal) Error() string { return r.sentence }

// forbid returns a refusal by policy, with status 403.
func forbid(format string, args ...any) error {
	return refusal{http.StatusForbidden, "kbnode: " + fmt.Sprintf(format, args...)}
}

// unavailable returns a refusal by the node's state, with status 503.
func unavailable(err error) error {
	return refusal{http.StatusServiceUnavailable, "kbnode: " + strings.ReplaceAll(err.Error(), "\n", "; ")}
}

// call is a request.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	query  url.Values
	caller *unix.Ucred
}

// serve answers a request.
func (g *guard) serve(w http.ResponseWriter, r *http.Request) {
	err := g.dispatch(&call{w: w, r: r, query: r.URL.Query()})
	if err == nil {
		return
	}
	no, ok := errors.AsType[refusal](err)
	if !ok {
		no = refusal{http.StatusBadGateway, "kbnode: " + err.Error()}
	}
	g.log.Info("request refused", "method", r.Method, "path", text.Line(r.URL.Path, 200), "status", no.status, "err", no.sentence)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	// The client reads the sentence or is gone.
	_ = json.NewEncoder(w).Encode(map[string]string{"message": no.sentence})
}

func (g *guard) dispatch(c *call) (err error) {
	if c.caller, err = g.caller(c.r.Context()); err != nil {
		return err
	}
	switch c.r.Method + " " + c.r.URL.Path {
	case "POST " + slot.RunPath:
		return g.run(c)
	case "POST " + slot.CancelPath:
		return g.cancelRun(c)
	case "POST " + slot.RefusedPath:
		g.cleaner.refused()
		return c.done(nil)
	case "POST " + slot.ReadyPath:
		return g.agentReady(c)
	case "POST " + slot.RegisteredPath:
		g.cleaner.registered()
		return c.done(slot.Register(g.cleaner.runDir))
	case "GET " + slot.CheckPath:
		_, err = g.ready(c.r.Context())
		return c.done(err)
	}
	return refusal{http.StatusNotFound, "kbnode: the slot's service does not know " + text.Line(c.r.Method+" "+c.r.URL.Path, 200)}
}

// agentReady answers the agent's unit, which is about to become the agent. Only root may ask: no
// process of the slot's user becomes root in the agent's unit.
func (g *guard) agentReady(c *call) error {
	if !g.isRoot(c.caller) {
		return forbid("only the agent's unit may do this, before the agent starts; leave it to kbnode")
	}
	parked, err := g.cleaner.ready(c.r.Context(), int(c.caller.Pid))
	if parked != "" {
		return refusal{http.StatusConflict, parked}
	}
	return c.done(err)
}

// done says that all is done, unless err is not nil.
func (c *call) done(err error) error {
	if err == nil {
		c.w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// count returns a parameter that counts bytes, 0 if it is missing.
func (c *call) count(name string) (int64, error) {
	n, err := strconv.ParseUint("0"+c.query.Get(name), 10, 63)
	if err != nil {
		return 0, refusal{http.StatusBadRequest, "kbnode: " + name + " is not a number of bytes"}
	}
	return int64(n), nil
}

// hangUp closes what was read to its end or is given up, so that an error no longer matters.
func hangUp(c io.Closer) { _ = c.Close() }

// checkPolicy returns what a policy lacks. Zero would mean "no limit" to the engine.
func checkPolicy(p plan.JobPolicy) error {
	var errs []error
	for lack, missing := range map[string]bool{
		"name":          p.Name == "",
		"user":          p.User == "",
		"slice":         !strings.HasSuffix(p.Slice, ".slice") || strings.Contains(p.Slice, "/"),
		"cpus":          p.CPUs == "",
		"memory_nodes":  p.MemoryNodes == "",
		"memory_bytes":  p.MemoryBytes <= slot.PageSlack,
		"pids_limit":    p.PidsLimit <= 0,
		"shm_bytes":     p.ShmBytes <= 0,
		"work_root":     !filepath.IsAbs(p.WorkRoot) || filepath.Clean(p.WorkRoot) == "/",
		"docker_socket": !filepath.IsAbs(p.DockerSocket),
		"socket":        !filepath.IsAbs(p.Socket),
	} {
		if missing {
			errs = append(errs, fmt.Errorf("the policy of slot %s has no %s", p.Name, lack))
		}
	}
	return errors.Join(errs...)
}

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
