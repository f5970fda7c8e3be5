// Package slottest answers in place of a slot.
package slottest

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// maxRequest bounds a request, in bytes.
const maxRequest = 16 << 20

// Serve answers the requests on a socket until the test ends. The context of each ends when its client cancels it.
func Serve(tb testing.TB, socket string, answer func(canceled context.Context, kind byte, body []byte, frames *slot.Frames) slot.Outcome) {
	tb.Helper()
	l, err := net.Listen("unix", socket)
	must.Do(tb, err)
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(tb.Context(), conn, answer)
		}
	}()
}

func serve(ctx context.Context, conn net.Conn, answer func(context.Context, byte, []byte, *slot.Frames) slot.Outcome) {
	defer func() { _ = conn.Close() }()
	kind, body, err := slot.ReadRequest(conn, maxRequest)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	}()
	frames := slot.NewFrames(conn)
	if frames.Taken() == nil {
		_ = frames.End(answer(ctx, kind, body, frames))
	}
}
