package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/gpu-mode/kbnode/test/must"
)

// hides checks that err does not show the password, in its text or in a wrapped error
// that a logger might format.
func hides(t *testing.T, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		doc, _ := json.Marshal(e)
		if text := fmt.Sprintf("%v %+v %#v %s", e, e, e, doc); strings.Contains(text, "pa55") || strings.Contains(text, "w0rd") {
			t.Errorf("the password is in %s", text)
		}
	}
}

// listen calls serve for each connection, in a goroutine, and returns its address as part of
// a DSN.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() //nolint:errcheck // the client sees it
				serve(c)
			}()
		}
	}()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	return "host=" + host + " port=" + port + " sslmode=disable connect_timeout=1"
}

// TestConnectRefused checks that an error says why there is no connection and what to do
// about it, without a part of the DSN.
func TestConnectRefused(t *testing.T) {
	t.Parallel()
	refuses := func(c net.Conn) {
		b := pgproto3.NewBackend(c, c)
		if _, err := b.ReceiveStartupMessage(); err == nil {
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "of pa55-w0rd"})
			_ = b.Flush()
		}
	}
	for _, c := range []struct{ dsn, err string }{
		{listen(t, refuses), `refuses the connection (SQLSTATE "28P01"); check the DSN, PGPASSWORD`},
		{listen(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.0 400 Bad Request\r\n\r\n")) }), "no server is there"},
		{listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), "does not answer"},
		{"host=/nonexistent", `at "/nonexistent": no such file or directory; is the server`},
		{"host=w0rd.invalid", "no server is there"},
		{"host=127.0.0.1 port=1 connect_timeout=pa55", errDSN.Error()},
		{"password='pa55 w0rd", errDSN.Error()},
		{"pa55w0rd", errDSN.Error()},
	} {
		t.Run(c.err, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(c.dsn, "pa55") {
				c.dsn += " password=pa55-w0rd"
			}
			_, err := Open(t.Context(), c.dsn)
			must.Err(t, err, c.err)
			hides(t, err)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, "postgres://u:pa55-w0rd@127.0.0.1:1/db"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestExplain checks the errors for what ends a transaction.
func TestExplain(t *testing.T) {
	t.Parallel()
	code := func(c string) error { return fmt.Errorf("x: %w", &pgconn.PgError{Code: c, Message: "why\x1b"}) }
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{code("42P01"), `refuses: "why\x1b"; apply kernelbot's migrations`},
		{context.DeadlineExceeded, "does not answer"},
		{io.ErrUnexpectedEOF, "ask PostgreSQL: unexpected EOF"},
	} {
		must.Err(t, explain(t.Context(), c.err), c.want)
	}
}

func TestHasPassword(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"": false, "env": false, "host=/run/x user=e2e dbname=kernelbot": false, "postgres://e2e@db/kernelbot": false,
		"postgres://e2e@[::1]:5432/kernelbot?sslmode=require": false, "host=db passfile=/root/pw": false,
		"host=db password=x": true, "host=db PASSWORD = x": true, "postgres://e2e:x@db/kernelbot": true, "postgresql://e2e:p/w@db/kernelbot": true,
		"postgres://db/kernelbot?user=e2e&password=x": true, "host=db sslpassword=x": true, "postgres://e2e:x@@db:1/kernelbot": true,
	} {
		if got := HasPassword(dsn); got != want {
			t.Errorf("%s: %t", dsn, got)
		}
	}
}
