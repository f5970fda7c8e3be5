package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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
			_, err := open(t.Context(), dsn, limits{300 * time.Millisecond, time.Minute, time.Minute, time.Minute})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(fmt.Sprintf("%+v", err), "pa55") {
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
		{code("40001"), "another transaction conflicted with this one", errInTheWay},
		{code("40P01"), "try again", errInTheWay},
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

// TestRecordCheck checks that what PostgreSQL or kernelbot would not accept is refused
// before the server is asked.
func TestRecordCheck(t *testing.T) {
	t.Parallel()
	good := func() Record {
		return Record{
			Leaderboard: "l", GPU: "B200_BK", UserID: "1", UserName: "n", File: "a.py", Code: "x", Task: json.RawMessage(` {"a":1}`),
			Description: "a\x00\xff", Deadline: time.Now(), Submitted: time.Now(),
		}
	}
	r := good()
	if err := r.check(); err != nil || r.Description != "a\ufffd\ufffd" {
		t.Errorf("%v, %q", err, r.Description)
	}
	for want, change := range map[string]func(*Record){
		"leaderboard's name":     func(r *Record) { r.Leaderboard = "" },
		"GPU type":               func(r *Record) { r.GPU = "a\nb" },
		"user's id":              func(r *Record) { r.UserID = "\xff" },
		"user's name":            func(r *Record) { r.UserName = strings.Repeat("x", maxName+1) },
		"file name":              func(r *Record) { r.File = "a\x1b[2J" },
		"the description":        func(r *Record) { r.Description = strings.Repeat("x", maxTask+1) },
		"is not UTF-8":           func(r *Record) { r.Code = "\xff" },
		"not a JSON object":      func(r *Record) { r.Task = json.RawMessage("[]") },
		"JSON object of at most": func(r *Record) { r.Task = json.RawMessage("{") },
		"deadline or the time":   func(r *Record) { r.Submitted = time.Time{} },
	} {
		r := good()
		change(&r)
		if _, err := (&Store{}).Save(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "store leaderboard: ") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestStoredForms checks the texts in which values are stored and compared.
func TestStoredForms(t *testing.T) {
	t.Parallel()
	score := math.Nextafter(0.1, 1)
	if got := (&Run{Score: &score}).score(); got != "0.10000000000000002" {
		t.Errorf("a score is %v", got)
	}
	if got := (&Run{}).score(); got != nil {
		t.Errorf("no score is %v", got)
	}
	if nullable(nil) != nil || nullable(json.RawMessage("{}")) != "{}" {
		t.Error("nullable")
	}
	if got := stamp(time.Date(2027, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600))); got != "2027-01-02T02:04:05.123456Z" {
		t.Errorf("a time is %s", got)
	}
	n := 3
	if orNull(&n) != "3" || orNull[int](nil) != "NULL" {
		t.Error("orNull")
	}
	var d differences
	d.compare("a", 1, "1")
	d.compare("code", strings.Repeat("x", 100)+"y", strings.Repeat("x", 100)+"z")
	if len(d) != 1 || !strings.Contains(d[0].Error(), `code: "xxxxxxxxxxy" is stored, not "xxxxxxxxxxz", from byte 90`) {
		t.Errorf("the differences are %v", d)
	}
}

// script is a transaction that records its statements. others is the number of
// submissions that are not kbnode's; fail has the errors of statements that are
// refused.
type script struct {
	pgx.Tx
	done   []string
	gone   bool // the leaderboard does not exist
	others int
	fail   map[string]error
}

func (s *script) note(sql string) error {
	words := strings.Fields(sql)
	s.done = append(s.done, strings.Join(words[:min(len(words), 4)], " "))
	for part, err := range s.fail {
		if strings.Contains(sql, part) {
			return err
		}
	}
	return nil
}

func (s *script) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, s.note(sql)
}

func (s *script) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	err := s.note(sql)
	if err == nil && s.gone {
		err = pgx.ErrNoRows
	}
	return row{err, s.others}
}

// Begin creates a savepoint.
func (s *script) Begin(context.Context) (pgx.Tx, error) { return s, s.note("savepoint") }
func (s *script) Commit(context.Context) error          { return s.note("release") }
func (s *script) Rollback(context.Context) error        { return s.note("rollback") }

type row struct {
	err error
	n   int
}

func (r row) Scan(into ...any) error {
	for _, v := range into {
		switch v := v.(type) {
		case *int:
			*v = r.n
		case *int64:
			*v = int64(r.n)
		}
	}
	return r.err
}

// TestRemoveKeeps checks that Remove deletes nothing of others, and of ours only what
// Save created.
func TestRemoveKeeps(t *testing.T) {
	t.Parallel()
	deletes := func(s *script) string {
		var tables []string
		for _, d := range s.done {
			if name, ok := strings.CutPrefix(d, "DELETE FROM leaderboard."); ok {
				tables = append(tables, strings.Fields(name)[0])
			}
		}
		return strings.Join(tables, " ")
	}
	lost := errors.New("lost")
	for _, c := range []struct {
		name    string
		st      Stored
		s       script
		is      error
		deleted func(string) bool
	}{
		{"all ours", Stored{UserIsNew: true, CodeIsNew: true}, script{}, nil, func(d string) bool {
			return strings.HasSuffix(d, "user_info code_files") && strings.Contains(d, "leaderboard")
		}},
		{"user and code of others", Stored{}, script{}, nil, func(d string) bool {
			return !strings.Contains(d, "user_info") && !strings.Contains(d, "code_files") && d != ""
		}},
		{"submissions of others", Stored{UserIsNew: true}, script{others: 1}, ErrShared, func(d string) bool { return d == "" }},
		{"not there any more", Stored{UserIsNew: true}, script{gone: true}, nil, func(d string) bool { return d == "user_info" }},
		{"a lock that is refused", Stored{UserIsNew: true}, script{fail: map[string]error{"FOR UPDATE": lost}}, lost, func(d string) bool { return d == "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := c.st.remove(t.Context(), &c.s); !errors.Is(err, c.is) {
				t.Errorf("%v, want %v", err, c.is)
			}
			if d := deletes(&c.s); !c.deleted(d) {
				t.Errorf("it deletes from %q: %q", d, c.s.done)
			}
		})
	}
}
