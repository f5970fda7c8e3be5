package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gpu-mode/kbnode/internal/guard"
)

// reclaim asks the slot's guard, which is root, to give the slot's user what
// containers left in its checkouts.
func reclaim(ctx context.Context, socket string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guard"+guard.ReclaimPath, nil)
	if err != nil {
		return fmt.Errorf("take back the checkouts: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("take back the checkouts: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusNoContent {
		says, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("take back the checkouts: guard says %s: %s", resp.Status, says)
	}
	return nil
}
