package guard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// fakeKeeper answers as it is told to, and records who reports.
type fakeKeeper struct {
	slotKeeper
	parked string
	err    error
	pids   []int
}

func (f *fakeKeeper) Ready(_ context.Context, pid int) (string, error) {
	f.pids = append(f.pids, pid)
	return f.parked, f.err
}

func (f *fakeKeeper) Registered(_ context.Context, pid int) error {
	f.pids = append(f.pids, pid)
	return f.err
}

// TestReports goes through the socket: the kernel reports who asks.
func TestReports(t *testing.T) {
	t.Parallel()
	policy := testPolicy()
	policy.Socket = filepath.Join(t.TempDir(), "s")
	l, err := listen(policy.Socket, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(Config{Policy: policy, Log: slog.New(slog.DiscardHandler)}, nil)
	var asRoot atomic.Bool
	server := &http.Server{Handler: http.HandlerFunc(g.serve), ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
		if p, ok := conn.(*peerConn); ok {
			p.root = asRoot.Load()
		}
		return notePeer(ctx, conn)
	}}
	go func() {
		_ = server.Serve(&peers{UnixListener: l, allowed: []int{os.Getuid()}, slots: make(chan struct{}, 8), log: g.log})
	}()
	t.Cleanup(func() { _ = server.Close() })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", policy.Socket) }}}
	for _, row := range []struct {
		name, path string
		keeper     fakeKeeper
		root       bool
		code       int
		message    string
		asked      bool
	}{
		{"registered", slot.RegisteredPath, fakeKeeper{}, false, http.StatusNoContent, "", true},
		{"parked", slot.ReadyPath, fakeKeeper{parked: "maintenance"}, true, http.StatusConflict, "maintenance", true},
		{"not the agent", slot.RegisteredPath, fakeKeeper{err: &keeper.CallerError{Text: "only the slot's own agent may do this"}}, false, http.StatusForbidden, "kbnode: only the slot's own agent may do this", true},
		{"a failure", slot.RegisteredPath, fakeKeeper{err: errors.New("read /proc: broken")}, false, http.StatusBadGateway, "kbnode: read /proc: broken", true},
		{"ready", slot.ReadyPath, fakeKeeper{}, true, http.StatusNoContent, "", true},
		// No process of the slot's user is accepted as one that is about to become the agent.
		{"ready, says the slot's user", slot.ReadyPath, fakeKeeper{}, false, http.StatusForbidden, "kbnode: only the agent's unit may do this, before the agent starts", false},
		{"parked", slot.ReadyPath, fakeKeeper{parked: "maintenance"}, true, http.StatusConflict, "maintenance", true},
		{"not the agent", slot.RegisteredPath, fakeKeeper{err: &keeper.CallerError{Text: "only the slot's own agent may do this"}}, false, http.StatusForbidden, "kbnode: only the slot's own agent may do this", true},
		{"a failure", slot.RegisteredPath, fakeKeeper{err: errors.New("read /proc: broken")}, false, http.StatusBadGateway, "kbnode: read /proc: broken", true},
		{"what an earlier kbnode's hooks reported", "/kbnode/end", fakeKeeper{}, false, http.StatusNotFound, "kbnode: the slot's service does not know POST /kbnode/end", false},
	} {
		asRoot.Store(row.root)
		g.keeper = &row.keeper
		resp, err := client.Post("http://guard"+row.path, "", nil)
		if err != nil {
			t.Fatal(row.name, err)
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(row.name, err)
		}
		var says struct{ Message string }
		if len(text) > 0 {
			if err := json.Unmarshal(text, &says); err != nil {
				t.Fatal(row.name, err)
			}
		}
		if resp.StatusCode != row.code || !strings.HasPrefix(says.Message, row.message) || (says.Message == "") != (row.message == "") {
			t.Errorf("%s: %d %q, want %d %q", row.name, resp.StatusCode, says.Message, row.code, row.message)
		}
		if asked := len(row.keeper.pids) == 1 && row.keeper.pids[0] == os.Getpid(); asked != row.asked {
			t.Errorf("%s: asked for processes %v", row.name, row.keeper.pids)
		}
	}
}
