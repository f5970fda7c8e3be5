package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// guardTime is how long to retry a guard that does not listen: after a fault it is
	// back in a second.
	guardTime = 15 * time.Second
	// parkedPoll is the time between checks of a parked slot.
	parkedPoll = 5 * time.Second
)

// parkedError is the reason why a slot takes no jobs.
type parkedError struct{ reason string }

func (e *parkedError) Error() string { return e.reason }

// Ready waits until slot k may take jobs: its guard clears away what earlier jobs left
// and checks the GPU. As long as something remains that cannot be cleared, the slot is
// parked and its agent does not start.
func Ready(ctx context.Context, k int, log *slog.Logger) error {
	lastReason := ""
	for {
		err := notifyGuard(ctx, plan.SocketPath(k), slot.ReadyPath)
		parked, ok := errors.AsType[*parkedError](err)
		if !ok {
			return err
		}
		if parked.reason != lastReason {
			log.Warn("slot parked", "slot", plan.SlotName(k), "reason", parked.reason)
			lastReason = parked.reason
		}
		if limit.Sleep(ctx, parkedPoll) != nil {
			return ctx.Err()
		}
	}
}

// notifyGuard reports a step of the agent, such as slot.ReadyPath, to the slot's guard, which
// runs as root. The error is a *parkedError if the slot is parked.
func notifyGuard(ctx context.Context, socket, path string) error {
	deadline := time.Now().Add(guardTime)
	for {
		err := postToGuard(ctx, socket, path)
		op, ok := errors.AsType[*net.OpError](err)
		if !ok || op.Op != "dial" || time.Now().After(deadline) || limit.Sleep(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
}

func postToGuard(ctx context.Context, socket, path string) error {
	client := slot.Client(socket)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guard"+path, nil)
	if err != nil {
		return fmt.Errorf("ask the slot's guard: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the slot's guard: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusConflict:
		return &parkedError{slot.Message(resp)}
	}
	return fmt.Errorf("ask the slot's guard: %s: %s", resp.Status, slot.Message(resp))
}
