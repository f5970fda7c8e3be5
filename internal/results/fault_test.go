//go:build postgres

package results

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// password must not appear in any message, not even in part.
const password = "pa55-w0rd-Qq"

// proxy is a connection to the server that can be cut. For everything that the client
// sends, bite returns whether to pass it on and whether to pass on the answer. The
// connection ends at the first that is not passed on.
func proxy(t *testing.T, bite func(sent []byte) (pass, answer bool)) (host string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go relay(client, bite)
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "host=127.0.0.1 port=" + port + " sslmode=disable"
}

func relay(client net.Conn, bite func([]byte) (pass, answer bool)) {
	defer func() { _ = client.Close() }()
	to, err := net.Dial("unix", filepath.Join(server.Dir, ".s.PGSQL.5432"))
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	cut, done := make(chan struct{}), make(chan struct{})
	go func() { // from the server
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, err := to.Read(buf)
			select {
			case <-cut:
				return
			default:
			}
			if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
				_ = client.Close()
				return
			}
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		pass, answer := bite(buf[:n])
		if !answer {
			close(cut)
		}
		if pass {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if !answer && pass {
			<-done // the server has answered
		}
		if err != nil || !answer {
			return
		}
	}
}

// name returns the database in a DSN of database.
func name(dsn string) string { return dsn[strings.Index(dsn, "dbname="):] }

// TestConnectionCut checks that wherever the connection is cut, the database has all or
// nothing, and the caller learns which.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	s, admin, dsn := database(t)
	for _, c := range []struct {
		at           string
		pass, stored bool
	}{
		{at: "begin"}, {at: "INSERT INTO leaderboard.leaderboard"}, {at: "INSERT INTO leaderboard.submission"},
		{at: "INSERT INTO leaderboard.runs"}, {at: "INSERT INTO leaderboard.runs", pass: true},
		{at: "commit\x00"}, {at: "commit\x00", pass: true, stored: true},
	} {
		t.Run(fmt.Sprintf("%.40q %v", c.at, c.pass), func(t *testing.T) {
			var bitten atomic.Bool
			cutting := &Store{s.config.Copy(), s.limits}
			way, err := pgx.ParseConfig(proxy(t, func(sent []byte) (bool, bool) {
				if !bytes.Contains(sent, []byte(c.at)) || bitten.Swap(true) {
					return true, true
				}
				return c.pass, false
			}) + " user=postgres " + name(dsn))
			if err != nil {
				t.Fatal(err)
			}
			cutting.config.Host, cutting.config.Port, cutting.config.TLSConfig, cutting.config.Fallbacks = way.Host, way.Port, nil, nil
			r := record(t, "kbnode-e2e")
			st, err := cutting.Save(t.Context(), r)
			if !bitten.Load() {
				t.Error("nothing was cut")
			}
			if !c.stored {
				says(t, err, "the connection to PostgreSQL was lost", "nothing was changed")
				same(t, "rows", map[string]int{}, rows(t, admin))
				return
			}
			if err := errors.Join(err, s.Verify(t.Context(), st, r), s.Remove(t.Context(), st)); err != nil {
				t.Error(err)
			}
			same(t, "rows left", map[string]int{}, rows(t, admin))
		})
	}
}

// TestUnsureCommit checks that if the server cannot be asked about a commit, the caller
// learns that, and what to remove.
func TestUnsureCommit(t *testing.T) {
	t.Parallel()
	s, admin, dsn := database(t)
	var bitten atomic.Bool
	way := proxy(t, func(sent []byte) (bool, bool) {
		if bitten.Load() {
			return false, false
		}
		now := bytes.Contains(sent, []byte("commit\x00"))
		bitten.Store(now)
		return true, !now
	})
	unsure, err := open(t.Context(), way+" user=postgres "+name(dsn), limits{time.Second, callTime, statementTime, time.Second})
	if err != nil {
		t.Fatal(err)
	}
	st, err := unsure.Save(t.Context(), record(t, "kbnode-e2e"))
	if says(t, err, "unknown whether"); !errors.Is(err, ErrUnsure) || strings.Contains(err.Error(), "nothing was changed") {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), st); err != nil {
		t.Error(err)
	}
	same(t, "rows left", map[string]int{}, rows(t, admin))
}

// TestBackendTerminated has the administrator end the server's process during a
// transaction that waits for a lock.
func TestBackendTerminated(t *testing.T) {
	t.Parallel()
	s, admin, dsn := database(t)
	holder := administrator(t, strings.TrimPrefix(name(dsn), "dbname="))
	must(t, holder, "BEGIN")
	must(t, holder, "LOCK TABLE leaderboard.runs IN SHARE MODE")
	saved := make(chan error)
	r := record(t, "kbnode-e2e")
	go func() {
		_, err := s.Save(t.Context(), r)
		saved <- err
	}()
	for ended := false; !ended; {
		err := admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'kbnode' AND wait_event_type = 'Lock'`).Scan(&ended)
		if err != nil {
			t.Fatal(err)
		}
	}
	says(t, <-saved, "the connection to PostgreSQL was lost", "nothing was changed")
	must(t, holder, "ROLLBACK")
	same(t, "rows", map[string]int{}, rows(t, admin))
}

// TestNothingHangs checks that a call ends despite a lock that no one releases, a
// statement without end or a server that stops answering, and on the user's Ctrl-C.
func TestNothingHangs(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	long := limits{connectTime, callTime, statementTime, lockTime}
	with := func(change func(*limits), way string) *Store {
		t.Helper()
		l := long
		change(&l)
		s, err := open(t.Context(), way, l)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	holder := administrator(t, strings.TrimPrefix(name(dsn), "dbname="))
	must(t, holder, "BEGIN")
	must(t, holder, "LOCK TABLE leaderboard.runs IN SHARE MODE")
	r := record(t, "kbnode-e2e")

	_, err := with(func(l *limits) { l.lock = 200 * time.Millisecond }, dsn).Save(t.Context(), r)
	says(t, err, "another transaction has locked the rows", "nothing was changed")
	_, err = with(func(l *limits) { l.statement = 200 * time.Millisecond }, dsn).Save(t.Context(), r)
	says(t, err, "canceled a statement", "nothing was changed")
	_, err = with(func(l *limits) { l.call = time.Second }, dsn).Save(t.Context(), r)
	says(t, err, "did not answer within 1s", "nothing was changed")

	var deaf atomic.Bool
	way := proxy(t, func(sent []byte) (bool, bool) {
		if bytes.Contains(sent, []byte("INSERT INTO")) {
			deaf.Store(true)
		}
		return !deaf.Load(), true
	}) + " user=postgres " + name(dsn)
	_, err = with(func(l *limits) { l.call = time.Second }, way).Save(t.Context(), r)
	says(t, err, "did not answer within 1s", "nothing was changed")

	ctx, cancel := context.WithCancel(t.Context())
	s := with(func(*limits) {}, dsn)
	saved := make(chan error)
	go func() {
		_, err := s.Save(ctx, r)
		saved <- err
	}()
	for waits := false; !waits; {
		if err := admin.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'kbnode' AND wait_event_type = 'Lock'`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err = <-saved; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, holder, "ROLLBACK")
	same(t, "rows", map[string]int{}, rows(t, admin))
}

// TestOpenRefuses checks that Open's errors explain the problem and never contain the
// password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	of := name(dsn)
	must(t, admin, `DO $$ BEGIN CREATE USER secretive PASSWORD 'right'; CREATE USER reader; EXCEPTION WHEN duplicate_object THEN END $$`)
	must(t, admin, "GRANT USAGE ON SCHEMA leaderboard TO reader")
	must(t, admin, "GRANT SELECT ON ALL TABLES IN SCHEMA leaderboard TO reader")
	empty, old := "emptied", "old"
	for _, other := range []string{empty, old} {
		must(t, admin, "CREATE DATABASE "+other)
		must(t, administrator(t, other), map[string]string{empty: "DROP SCHEMA leaderboard CASCADE", old: "ALTER TABLE leaderboard.runs DROP COLUMN system_info"}[other])
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(dead.Addr().String())
	_ = dead.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = web.Close() })
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.0 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	here := "host=" + server.Dir + " password=" + password + " "
	url := "postgres://secretive:" + password + "@"
	for _, c := range []struct{ name, dsn, err string }{
		{"wrong password", here + "user=secretive " + of, `refuses the password of user "secretive"`},
		{"user not allowed", here + "user=stranger " + of, `refuses user "stranger"`},
		{"no database", here + "user=postgres dbname=nowhere", `has no database "nowhere"`},
		{"no schema", here + "user=postgres dbname=" + empty, "apply kernelbot's migrations first"},
		{"old schema", here + "user=postgres dbname=" + old, "apply kernelbot's migrations first"},
		{"may not write", here + "user=reader " + of, `user "reader" may not insert, update and delete in leaderboard.leaderboard`},
		{"unknown setting", here + "user=postgres secret=1 " + of, `refuses the connection (SQLSTATE "42704")`},
		{"no server", url + "127.0.0.1:" + port + "/db", "connection refused"},
		{"no socket", "host=/nonexistent password=" + password, "no such file"},
		{"no such host", url + "nohost.invalid/db", "no host has this name"},
		{"no answer", url + mute.Addr().String() + "/db", "no answer within 500ms"},
		{"not PostgreSQL", url + web.Addr().String() + "/db?sslmode=disable", "does not speak PostgreSQL's protocol"},
		{"TLS wanted of one that has none", url + web.Addr().String() + "/db?sslmode=require", "sslmode"},
	} {
		_, err := open(t.Context(), c.dsn, limits{500 * time.Millisecond, callTime, statementTime, lockTime})
		says(t, err, c.err)
		if hides(err) != nil {
			t.Errorf("%s: %v", c.name, hides(err))
		}
	}
	if _, err := Open(t.Context(), "host="+server.Dir+" user=secretive password=right "+of); err == nil || strings.Contains(err.Error(), "password") {
		t.Errorf("the right password: %v", err) // lets in the user, who lacks the rights
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
