package guard

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestConnectionsAreBounded opens as many connections as are allowed, and one more.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ping := func(patience time.Duration) (net.Conn, error) {
		conn, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: slot\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 1))
		return conn, err
	}
	var first net.Conn
	for i := range maxConnections {
		conn, err := ping(time.Minute)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if i == 0 {
			first = conn
		}
	}
	more, err := ping(300 * time.Millisecond)
	if err == nil {
		t.Error("one more is served")
	}
	for _, conn := range []net.Conn{more, first} {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ping(time.Minute); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
