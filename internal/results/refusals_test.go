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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// servePostgres calls serve for one connection after another.
func servePostgres(t *testing.T, serve func(net.Conn)) (host string, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	return at.IP.String(), at.Port
}

// refuses returns a server that answers the start of a connection with an error.
func refuses(code string) func(net.Conn) {
	return func(c net.Conn) {
		b := pgproto3.NewBackend(c, c)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "of pa55-w0rd"})
		_ = b.Flush()
	}
}

// TestConnectRefused checks that an error says why there is no connection and what to
// do about it, without the password.
func TestConnectRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		want  string
	}{
		{"password", refuses("28P01"), `refuses the password of user "u"; set PGPASSWORD`},
		{"pg_hba", refuses("28000"), `refuses user "u"; see its pg_hba.conf`},
		{"database", refuses("3D000"), `has no database "db"`},
		{"right", refuses("42501"), `user "u" may not connect to database "db"`},
		{"full", refuses("53300"), "no connection left"},
		{"starting", refuses("57P03"), "is starting or stopping"},
		{"other", refuses("42704"), `SQLSTATE "42704"`},
		{"another protocol", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.0 400 Bad Request\r\n\r\n")) }, "does not speak PostgreSQL's protocol"},
		{"silence", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "no answer within 300ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			host, port := servePostgres(t, c.serve)
			dsn := fmt.Sprintf("postgres://u:pa55-w0rd@%s:%d/db?sslmode=disable", host, port)
			_, err := open(t.Context(), dsn, limits{connect: 300 * time.Millisecond, call: time.Minute})
			if err == nil || !strings.Contains(err.Error(), c.want) || hides(err) != nil {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, "postgres://u:pa55-w0rd@127.0.0.1:1/db"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := Open(t.Context(), "postgres://u:pa55-w0rd@127.0.0.1:1/db"); err == nil || !strings.Contains(err.Error(), "is the server running there?") {
		t.Errorf("nothing listens: %v", err)
	}
	if _, err := Open(t.Context(), "pa55w0rd"); !errors.Is(err, errDSN) {
		t.Errorf("no DSN: %v", err)
	}
}

// TestPlain checks the errors for what a server refuses in a transaction.
func TestPlain(t *testing.T) {
	t.Parallel()
	s := &Store{&pgx.ConnConfig{Config: pgconn.Config{Database: "db", User: "u"}}, limits{call: time.Minute, lock: time.Second}}
	code := func(c string) error { return fmt.Errorf("x: %w", &pgconn.PgError{Code: c, Message: "why\x1b"}) }
	mine := errors.New("mine")
	for _, c := range []struct {
		err  error
		want string
		is   error
	}{
		{nil, "", nil},
		{mine, "mine", mine},
		{code("42P01"), "apply kernelbot's migrations first", nil},
		{code("42703"), `(\"why\\x1b\")`, nil},
		{code("42501"), `user "u" lacks a privilege`, nil},
		{code("25006"), "name the primary server", nil},
		{code("23503"), "rows that kbnode did not create", ErrShared},
		{code("57014"), "canceled a statement", nil},
		{code("55P03"), "locked the rows for over 1s", nil},
		{code("40001"), "another transaction conflicted with this one", errConflict},
		{code("40P01"), "try again", errConflict},
		{&pgconn.PgError{Code: "23505", TableName: "leaderboard"}, "choose another name", ErrExists},
		{code("22P05"), "U+0000", nil},
		{code("57P01"), "the connection to PostgreSQL was lost", errLost},
		{code("08006"), "the connection to PostgreSQL was lost", errLost},
		{code("XX000"), `SQLSTATE "XX000"`, nil},
		{io.ErrUnexpectedEOF, "the connection to PostgreSQL was lost", errLost},
		{net.ErrClosed, "the connection to PostgreSQL was lost", errLost},
		{pgx.ErrTxClosed, "the connection to PostgreSQL was lost", errLost},
		{context.DeadlineExceeded, "did not answer within 1m0s", nil},
	} {
		got := s.plain(t.Context(), c.err)
		want := strings.ReplaceAll(c.want, `\"`, `"`)
		want = strings.ReplaceAll(want, `\\`, `\`)
		if (got == nil) != (c.err == nil) || got != nil && !strings.Contains(got.Error(), want) || c.is != nil && !errors.Is(got, c.is) {
			t.Errorf("%v: %v, want %q", c.err, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.plain(ctx, code("XX000")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// hides returns an error if err shows the password, in its text or in a wrapped error
// that a logger might format.
func hides(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		doc, _ := json.Marshal(e)
		if text := fmt.Sprintf("%v %+v %#v %s", e, e, e, doc); strings.Contains(text, "pa55") || strings.Contains(text, "w0rd") {
			return fmt.Errorf("the password is in %s", text)
		}
	}
	return nil
}

// TestParseRefuses checks that an error for a DSN that cannot be parsed, or not
// reliably, quotes no part of it: the password may be in the wrong place.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:pa55#w0rd@host/db", "postgres://u:pa55@w0rd@host/db", "postgresql://u@pa55:w0rd@host/db", "postgres://u:1234#w0rd@host/db", "postgres://u:1234/w0rd@host/db", "postgres://u:1234?w0rd@host/db",
		"postgres://u:pa55%zzw0rd@host/db", "postgres://u:pa55@host:w0rd/db", "postgres://u:pa55@host/db?sslmode=w0rd",
		"password=pa55 w0rd", "password=pa55 w0rd host=h", "password='pa55 w0rd", "host=h password=pa55 port=w0rd", "pa55w0rd",
		"service=nowhere password=pa55", "host=h password=pa55\x00w0rd", "mysql://u:pa55@host/db", "host=h connect_timeout=pa55",
	} {
		if _, err := parse(dsn); !errors.Is(err, errDSN) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ dsn, host, user, password, database string }{
		{"postgres://u:p%40ss@host:6000/db?sslmode=disable", "host", "u", "p@ss", "db"},
		{"host=/run/pg user=u password='p w' dbname=db application_name=mine", "/run/pg", "u", "p w", "db"},
		{"", "from.env", "envuser", "envpass", "envdb"},
		{"dbname=other", "from.env", "envuser", "envpass", "other"},
	} {
		t.Setenv("PGHOST", "from.env")
		t.Setenv("PGUSER", "envuser")
		t.Setenv("PGPASSWORD", "envpass")
		t.Setenv("PGDATABASE", "envdb")
		got, err := parse(c.dsn)
		if err != nil {
			t.Errorf("%q: %v", c.dsn, err)
			continue
		}
		if got.Host != c.host || got.User != c.user || got.Password != c.password || got.Database != c.database {
			t.Errorf("%q: host %q, user %q, password %q, database %q", c.dsn, got.Host, got.User, got.Password, got.Database)
		}
		if got.RuntimeParams["application_name"] == "" {
			t.Errorf("%q: no application name", c.dsn)
		}
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
