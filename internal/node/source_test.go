package node

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// Not parallel: the environment says where the bus is.
func TestDeafBus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must.Do(t, err)
	defer func() { _ = l.Close() }()
	called := make(chan struct{})
	go func() {
		if conn, err := l.Accept(); err == nil { // and nothing more
			close(called)
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	life, end := context.WithCancel(t.Context())
	src := &source{n: &Node{Root: "/"}, life: life}
	asked := make(chan error)
	go func() {
		_, err := src.Units(t.Context(), "x.service")
		asked <- err
	}()
	<-called
	end()
	src.close() // hangs if it waits for a check
	if err := <-asked; err == nil {
		t.Error("a deaf bus answers")
	}
}
