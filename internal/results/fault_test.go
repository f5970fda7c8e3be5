//go:build postgres

package results

import (
	"bytes"
	"context"
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
// nothing, and the caller learns which, or what to remove.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	s, admin, dsn := database(t)
	for _, c := range []struct {
		at   string
		pass bool
	}{
		{"begin", false}, {"INSERT INTO leaderboard.leaderboard", false}, {"INSERT INTO leaderboard.submission", false},
		{"INSERT INTO leaderboard.runs", false}, {"INSERT INTO leaderboard.runs", true},
		{"commit\x00", false}, {"commit\x00", true},
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
			st, err := cutting.Save(t.Context(), record(t, "kbnode-e2e"))
			if !bitten.Load() {
				t.Error("nothing was cut")
			}
			unsure := strings.HasPrefix(c.at, "commit")
			says(t, err, "the connection to PostgreSQL was lost", map[bool]string{true: "unknown whether", false: "nothing was changed"}[unsure])
			if unsure != errors.Is(err, ErrUnsure) || unsure != (st.Name != "") || (rows(t, admin)["runs"] == 3) != (unsure && c.pass) {
				t.Errorf("%v, %+v, rows: %v", err, st, rows(t, admin))
			}
			if unsure {
				if err := s.Remove(t.Context(), st); err != nil {
					t.Error(err)
				}
			}
			same(t, "rows left", map[string]int{}, rows(t, admin))
		})
	}
}

// TestNothingHangs checks that a call ends despite a lock that no one releases, a
// statement without end or a server that stops answering, and on the user's Ctrl-C.
func TestNothingHangs(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	long := defaults
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

// TestOpenRefuses checks that Open's errors about the database and the way to it explain the
// problem and never contain the password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	must(t, admin, `DO $$ BEGIN CREATE USER reader; EXCEPTION WHEN duplicate_object THEN END $$`)
	must(t, admin, "GRANT USAGE ON SCHEMA leaderboard TO reader")
	must(t, admin, "GRANT SELECT ON ALL TABLES IN SCHEMA leaderboard TO reader")
	for other, change := range map[string]string{
		"emptied": "DROP SCHEMA leaderboard CASCADE", "old": "ALTER TABLE leaderboard.runs DROP COLUMN system_info",
	} {
		must(t, admin, "CREATE DATABASE "+other)
		must(t, administrator(t, other), change)
	}
	here := "host=" + server.Dir + " password=" + password + " "
	host, port := servePostgres(t, func(c net.Conn) { _, _ = c.Write([]byte("N")) })
	for _, c := range []struct{ name, dsn, err string }{
		{"wrong password", here + "user=secretive " + name(dsn), `refuses the password of user "secretive"`},
		{"no schema", here + "user=postgres dbname=emptied", "apply kernelbot's migrations first"},
		{"old schema", here + "user=postgres dbname=old", "apply kernelbot's migrations first"},
		{"may not write", here + "user=reader " + name(dsn), `user "reader" may not insert, update and delete in leaderboard.leaderboard`},
		{"unknown setting", here + "user=postgres secret=1 " + name(dsn), `refuses the connection (SQLSTATE "42704")`},
		{"no socket", "host=/nonexistent password=" + password, "no such file"},
		{"no such host", "postgres://secretive:" + password + "@nohost.invalid/db", "no host has this name"},
		{"TLS wanted of one that has none", fmt.Sprintf("postgres://u:%s@%s:%d/db?sslmode=require", password, host, port), "sslmode"},
	} {
		_, err := Open(t.Context(), c.dsn)
		says(t, err, c.err)
		if hides(err) != nil {
			t.Errorf("%s: %v", c.name, hides(err))
		}
	}
}
