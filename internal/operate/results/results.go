// Package results stores the results of a submission in kernelbot's PostgreSQL
// database, in the rows that kernelbot's backend would have written, reads them back,
// and removes them. Only this package accesses PostgreSQL.
package results

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Record is a submission and everything that its rows refer to.
type Record struct {
	Leaderboard string          // its name, which must be new
	Task        json.RawMessage // the task's definition as kernelbot keeps it: an object
	GPU         string          // the leaderboard's only GPU type, such as B200_BK
	UserID      string
	File        string // the submission's name
	Code        string
	Submitted   time.Time // also the leaderboard's deadline, so that no one submits to it
	Runs        []Run     // as RunsOf returns them
}

// Run is one evaluation of the submission: the values of runColumns.
type Run []any

// Stored identifies the rows of a Record and which of them Save created.
type Stored struct {
	Leaderboard int64   `json:"leaderboard_id"`
	Name        string  `json:"leaderboard"`
	GPU         string  `json:"gpu_type"`
	Submission  int64   `json:"submission_id"`
	Code        int64   `json:"code_id"`
	Hash        string  `json:"code_hash"` // of the code: hexadecimal SHA-256
	CodeIsNew   bool    `json:"code_is_new"`
	User        string  `json:"user_id"`
	UserIsNew   bool    `json:"user_is_new"`
	Runs        []int64 `json:"run_ids"` // in the Record's order
}

// Store is a database that Open has checked. It keeps no connection: an evaluation takes long.
type Store struct{ config *pgx.ConnConfig }

// ErrDSN is the error of [Open] for a DSN that it cannot read.
var ErrDSN = errors.New("the database's DSN cannot be read; write postgres://USER@HOST:PORT/NAME or host=HOST dbname=NAME user=USER, " +
	"with the password in PGPASSWORD or ~/.pgpass (in a URL, special characters as %XX), and a service from the service file")

// Open connects to the database that a DSN names (a URL or key=value words; missing
// parts come from environment variables such as PGHOST and PGPASSWORD, ~/.pgpass and
// the service file), and tries what Save and Remove do, without a commit. No error of
// this package shows any part of the DSN: a misplaced one may be the password.
func Open(ctx context.Context, dsn string) (*Store, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, ErrDSN
	}
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], "kbnode")
	config.ConnectTimeout = min(config.ConnectTimeout, 10*time.Second)
	// No prepared statements: behind a pooler, the next transaction may use another
	// server connection.
	config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	s := &Store{config}
	id, empty := "kbnode-e2e-"+rand.Text(), json.RawMessage("{}")
	run := Run{time.Time{}, time.Time{}, "", false, "", nil, false, nil, nil, nil, empty}
	r := &Record{Leaderboard: id, Task: empty, UserID: id, Code: id, Runs: []Run{run}}
	return s, s.transact(ctx, false, func(ctx context.Context, tx pgx.Tx) error {
		st, err := r.insert(ctx, tx)
		if err != nil {
			return err
		}
		return st.remove(ctx, tx)
	})
}

// transact runs do in one transaction on its own connection. If it returns an error, the
// database is unchanged, unless that says that this is unknown.
func (s *Store) transact(ctx context.Context, commit bool, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return explain(ctx, err)
	}
	defer func() { // ends a transaction that was not committed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	tx, err := conn.Begin(ctx)
	if err == nil { // one kbnode at a time: they share a user, and Save and Remove lock rows in reverse order
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('kbnode'))")
	}
	if err == nil {
		err = do(ctx, tx)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", explain(ctx, err))
	}
	if !commit {
		return nil
	}
	if err = tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w; unknown whether all was changed or nothing", explain(ctx, err))
	}
	return nil
}

// explain returns an error that says what the server or the connection refused, and what
// to do about it. For a connection that was not made, it neither wraps the driver's
// error, which contains the configuration with the password, nor quotes the server's
// message, which may contain a part of the DSN.
func explain(ctx context.Context, err error) error {
	refusal, refused := errors.AsType[*pgconn.PgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return fmt.Errorf("ask PostgreSQL: %w", context.Canceled)
	case refused && connecting:
		return fmt.Errorf("PostgreSQL refuses the connection (SQLSTATE %q); check the DSN, PGPASSWORD or ~/.pgpass, and the server's log", refusal.Code)
	case connecting:
		return errors.New("connect to PostgreSQL: no server answers there; check its address in the DSN, sslmode, and the firewall")
	case refused && strings.HasPrefix(refusal.Code, "42"): // a table, a column or a privilege is missing
		return fmt.Errorf("PostgreSQL refuses: %q; apply kernelbot's migrations, and let the user write to its tables", refusal.Message)
	case refused:
		return fmt.Errorf("PostgreSQL refuses: %q (SQLSTATE %q)", refusal.Message, refusal.Code)
	}
	return fmt.Errorf("ask PostgreSQL: %w", err)
}

// HasPassword reports whether a DSN may contain a password (as a keyword, in a query, or before
// a host) and so must not be on a command line, which everyone on the machine sees.
func HasPassword(dsn string) bool { return hasPassword().MatchString(dsn) }

var hasPassword = lazy.Regexp(`(?i)password\s*=|://.*:.*@`)
