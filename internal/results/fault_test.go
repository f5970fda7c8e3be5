//go:build postgres

package results

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/postgres"
)

// relay passes on what a client sends, until it sends these bytes. Then the connection ends,
// if pass is true after the server got them and answered.
func relay(client net.Conn, end string, pass bool) {
	to, err := net.Dial("unix", filepath.Join(server.Dir, ".s.PGSQL.5432"))
	if err != nil {
		return
	}
	defer to.Close() //nolint:errcheck // the server sees it
	var cut atomic.Bool
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buf := make([]byte, 1<<16)
		for {
			n, err := to.Read(buf)
			if err != nil || cut.Load() {
				return
			}
			_, _ = client.Write(buf[:n])
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		last := err != nil || bytes.Contains(buf[:n], []byte(end))
		cut.Store(last)
		if !last || pass {
			_, _ = to.Write(buf[:n])
		}
		if last && pass && err == nil {
			<-answered
		}
		if last {
			return
		}
	}
}

// TestConnectionCut checks that wherever the connection is cut, the database has all or
// nothing, and the caller learns which, or what to remove.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	for _, c := range []struct {
		at     string
		pass   bool
		err    string
		stored int // runs
	}{
		{"INSERT INTO leaderboard.runs", true, "nothing was changed", 0},
		{"commit\x00", false, ErrUnsure.Error(), 0},
		{"commit\x00", true, ErrUnsure.Error(), 3},
	} {
		way, err := pgx.ParseConfig(listen(t, func(client net.Conn) { relay(client, c.at, c.pass) }))
		must.Do(t, err)
		cutting := &Store{s.config.Copy()}
		cutting.config.Host, cutting.config.Port, cutting.config.Fallbacks = way.Host, way.Port, nil
		st, err := cutting.Save(t.Context(), record(t, "kbnode-e2e"))
		must.Err(t, err, c.err)
		must.Equal(t, c.stored, postgres.Rows(t, admin)["runs"])
		if errors.Is(err, ErrUnsure) {
			must.Err(t, s.Remove(t.Context(), st), "")
		}
		must.Equal(t, map[string]int{}, postgres.Rows(t, admin))
	}
}

// TestInterrupted checks that one kbnode waits for another, and ends with its context, as at the
// user's Ctrl-C.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	holder := server.Connect(t, admin.Config().Database)
	postgres.Exec(t, holder, "SELECT pg_advisory_lock(hashtext('kbnode'))")
	ctx, cancel := context.WithCancel(t.Context())
	saved := make(chan error)
	go func() {
		_, err := s.Save(ctx, record(t, "kbnode-e2e"))
		saved <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		must.Do(t, admin.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'kbnode' AND wait_event_type = 'Lock'`).Scan(&waits))
	}
	cancel()
	if err := <-saved; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must.Equal(t, map[string]int{}, postgres.Rows(t, admin))
}

// TestOpenRefuses checks what Open says about the database, without the password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	name := dsn[strings.Index(dsn, "dbname="):]
	postgres.Exec(t, admin, `CREATE USER reader; GRANT USAGE ON SCHEMA leaderboard TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA leaderboard TO reader`)
	postgres.Exec(t, admin, "CREATE DATABASE emptied")
	postgres.Exec(t, server.Connect(t, "emptied"), "DROP SCHEMA leaderboard CASCADE")
	postgres.Exec(t, admin, "CREATE DATABASE old")
	postgres.Exec(t, server.Connect(t, "old"), "ALTER TABLE leaderboard.runs DROP COLUMN system_info")
	for _, c := range []struct{ dsn, err string }{
		{"user=secretive " + name, `refuses the connection (SQLSTATE "28P01")`},
		{"user=postgres dbname=w0rd", `refuses the connection (SQLSTATE "3D000")`},
		{"user=postgres dbname=emptied", `"relation \"leaderboard.leaderboard\" does not exist"; apply kernelbot's migrations`},
		{"user=postgres dbname=old", `"column \"system_info\" of relation \"runs\" does not exist"; apply kernelbot's migrations`},
		{"user=reader " + name, `"permission denied for table leaderboard"; apply kernelbot's migrations, and let the user write`},
		{"user=postgres w0rd=1 " + name, `refuses the connection (SQLSTATE "42704")`},
	} {
		_, err := Open(t.Context(), "host="+server.Dir+" password=pa55-w0rd "+c.dsn)
		must.Err(t, err, c.err)
		hides(t, err)
	}
}
