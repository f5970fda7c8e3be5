package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/checkout"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// requestTime is how long a client has to send its request, and answerTime how long it has to read the end of the answer.
	requestTime = 30 * time.Second
	answerTime  = 30 * time.Second
)

// refusedError is a sentence about what the author of a job must change.
type refusedError struct{ sentence string }

func (e *refusedError) Error() string { return e.sentence }

// forbid returns a refusal by policy.
func forbid(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }

// Causes for which a job's context ends.
var (
	errCanceled = errors.New("the job was canceled before it started")
	errStopped  = errors.New("the node ended the job's process")
)

// lateError means that a job took too long.
type lateError struct{ limit time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("the job was terminated: it ran longer than the %s that job.time_limit allows", e.limit)
}

// Answer answers the one request of a client that systemd has accepted: it runs a job to its end, says whether one could
// start, or clears the slot for its agent. A job ends early when the client closes its end of the connection. What root asked
// for also ends with ctx.
func Answer(ctx context.Context, policy plan.JobPolicy, client *net.UnixConn, log *slog.Logger) error {
	g, err := open(policy, log)
	if err != nil {
		return slot.NewFrames(client).End(slot.Outcome{NodeFault: err.Error()})
	}
	defer hangUp(g.api)
	return g.answer(ctx, client)
}

func (g *guard) answer(ctx context.Context, client *net.UnixConn) error {
	r := &jobRun{frames: slot.NewFrames(client)}
	defer r.close()
	o, err := g.serve(ctx, client, r)
	if err != nil {
		g.log.Info("job not started", "err", err)
		o = notStarted(err)
	}
	if err := client.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return r.frames.End(o)
}

func (g *guard) serve(ctx context.Context, client *net.UnixConn, r *jobRun) (_ slot.Outcome, err error) {
	if r.root, err = g.isRoot(client); err != nil {
		return slot.Outcome{}, err
	}
	if err := client.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return slot.Outcome{}, fmt.Errorf("read the request: %w", err)
	}
	kind, body, err := slot.ReadRequest(client, job.MaxSpec)
	if kind == slot.RequestRun && !r.root {
		if err := g.report(slot.WorkedName); err != nil { // the next agent may wait a little, as after one that failed
			g.log.Warn("job not counted", "err", err)
		}
	}
	switch {
	case errors.Is(err, slot.ErrTooLong):
		return slot.Outcome{}, forbid("spec: it has more than %d bytes; send fewer variables", job.MaxSpec)
	case err != nil:
		return slot.Outcome{}, err
	case kind == slot.RequestReport:
		return slot.Outcome{}, g.report(string(body))
	case kind == slot.RequestClear && !r.root:
		return slot.Outcome{}, forbid("only the agent's unit may do this, before the agent starts; leave it to kbnode")
	case kind != slot.RequestRun && kind != slot.RequestClear && kind != slot.RequestCheck:
		return slot.Outcome{}, fmt.Errorf("the slot knows no request %q; another version of kbnode sent it", kind)
	}
	if kind == slot.RequestRun {
		r.spec, err = job.Parse(body)
		if no, ok := errors.AsType[*job.Refusal](err); ok {
			return slot.Outcome{}, forbid("%s", no)
		}
		if err != nil {
			return slot.Outcome{}, err
		}
	}
	if err := client.SetReadDeadline(time.Time{}); err != nil {
		return slot.Outcome{}, fmt.Errorf("read the request: %w", err)
	}
	if err := r.frames.Taken(); err != nil {
		return slot.Outcome{}, err
	}
	stopped := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	if r.root { // on a reboot, systemd ends everything at once, but an agent finishes its job
		defer context.AfterFunc(stopped, func() { cancel(errStopped) })()
	}
	go func() { // a client has no more to say
		_, _ = client.Read(make([]byte, 1))
		cancel(errCanceled)
	}()
	switch {
	case kind == slot.RequestCheck:
		if err = g.ready(); err == nil {
			_, err = g.engineInfo(ctx)
		}
		return slot.Outcome{}, err
	case kind == slot.RequestClear && string(body) == slot.ClearEnded:
		return slot.Outcome{}, g.sweepOnce(ctx)
	case kind == slot.RequestClear:
		// A slice without its unit limits nothing.
		if err := slot.CheckLimits(g.cgroupRoot, g.policy); err != nil {
			return slot.Outcome{}, err
		}
		parked, err := g.clear(ctx, string(body))
		return slot.Outcome{Reason: parked}, err
	}
	// What root runs has a limit of its own, which leaves hooks their time.
	if limit := time.Duration(g.policy.TimeLimitSeconds) * time.Second; limit > 0 && !r.root {
		end := time.AfterFunc(limit, func() { cancel(&lateError{limit}) })
		defer end.Stop()
	}
	return g.run(ctx, r)
}

// isRoot reports whether a client is root. Else it must be the slot's user: the socket's mode allows the same, but also
// anyone who joins the group later.
func (g *guard) isRoot(client *net.UnixConn) (bool, error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("identify the client: %w", err)
	}
	var peer *unix.Ucred
	if err2 := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || err2 != nil {
		return false, fmt.Errorf("identify the client: %w", errors.Join(err, err2))
	}
	if int(peer.Uid) != g.root && int(peer.Uid) != g.uid {
		return false, forbid("only root and the slot's user may use this socket; leave it to kbnode")
	}
	return int(peer.Uid) == g.root, nil
}

// notStarted tells a job that asks for what it may not have from a node that cannot run it.
func notStarted(err error) slot.Outcome {
	if no, ok := errors.AsType[*refusedError](err); ok {
		return slot.Outcome{Refused: no.sentence}
	}
	if no, ok := errors.AsType[*checkout.RefusedError](err); ok {
		return slot.Outcome{Refused: no.Error()}
	}
	return slot.Outcome{NodeFault: strings.ReplaceAll(err.Error(), "\n", "; "), Canceled: slices.ContainsFunc([]error{errCanceled, errStopped, errBusy}, func(e error) bool { return errors.Is(err, e) })}
}
