// Package results stores the results of a submission in kernelbot's PostgreSQL
// database, in the rows that kernelbot's backend would have written, reads them back,
// and removes them. Only this package accesses PostgreSQL.
package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/internal/limit"
)

// Bounds on the time that a server that does not answer, or the way to it, may cost.
const (
	connectTime   = 10 * time.Second // all addresses of the server together
	callTime      = time.Minute      // all of Open, Save, Verify or Remove
	statementTime = 30 * time.Second // one statement, enforced by the server
	lockTime      = 10 * time.Second // wait for another transaction's lock
	closeTime     = time.Second      // closing a connection
	attempts      = 5                // of one transaction, after deadlocks
)

// Record is a submission and everything that its rows refer to.
type Record struct {
	Leaderboard string          // its name, which must be new
	Description string          // may be empty
	Deadline    time.Time       // of the leaderboard
	Task        json.RawMessage // the task's definition as kernelbot keeps it: an object
	GPU         string          // the leaderboard's only GPU type, such as B200_BK
	UserID      string
	UserName    string // for a new user; an existing one keeps their name
	File        string // the submission's name
	Code        string // the submission, UTF-8
	Submitted   time.Time
	Runs        []Run // as RunsOf returns them
}

// Run is one evaluation of the submission.
type Run struct {
	Mode       string // test, benchmark, leaderboard, profile.0 …
	Secret     bool   // with the leaderboard's secret seed
	Runner     string // the GPU type that it ran on
	Start, End time.Time
	Passed     bool
	Score      *float64        // seconds; nil if the run is not ranked
	Compile    json.RawMessage // nil if nothing was compiled
	Meta       json.RawMessage // output, exit code, duration
	Result     json.RawMessage // what the task's program reported
	System     json.RawMessage // the machine as the job saw it
}

// Stored identifies the rows of a Record and which of them Save created. It is all that
// Remove needs, so it can be kept as JSON.
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

// Store is a database that Open has checked. It keeps no connection: an evaluation may
// take longer than the network keeps an idle one.
type Store struct {
	config *pgx.ConnConfig
	limits limits
}

// limits are the bounds of one Store, so that tests need not wait for them.
type limits struct{ connect, call, statement, lock time.Duration }

// tables are the tables and columns of kernelbot's migrations that this package uses.
var tables = []struct{ name, columns string }{
	{"leaderboard", "id, name, deadline, task, creator_id, forum_id, description"},
	{"gpu_type", "leaderboard_id, gpu_type"},
	{"user_info", "id, user_name"},
	{"code_files", "id, code, hash"},
	{"submission", "id, leaderboard_id, file_name, user_id, code_id, submission_time, done"},
	{"runs", "id, submission_id, start_time, end_time, mode, secret, runner, score, passed, compilation, meta, result, system_info"},
}

// Open connects to the database that a DSN names (a URL or key=value words; missing
// parts come from environment variables such as PGHOST and PGPASSWORD, ~/.pgpass and
// the service file) and checks that kernelbot's tables exist and may be written. No
// error of this package shows the DSN or a password.
func Open(ctx context.Context, dsn string) (*Store, error) {
	return open(ctx, dsn, limits{connectTime, callTime, statementTime, lockTime})
}

func open(ctx context.Context, dsn string, l limits) (*Store, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	s := &Store{config, l}
	return s, s.transact(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx) error {
		var refused []error
		for _, t := range tables {
			// Columns first: the error for a missing table is clearer.
			if _, err := tx.Exec(ctx, "SELECT "+t.columns+" FROM leaderboard."+t.name+" LIMIT 0"); err != nil {
				return err
			}
			var may bool
			if err := tx.QueryRow(ctx, `SELECT has_table_privilege($1, 'INSERT') AND has_table_privilege($1, 'UPDATE')
				AND has_table_privilege($1, 'DELETE')`, "leaderboard."+t.name).Scan(&may); err != nil {
				return err
			}
			if !may {
				refused = append(refused, fmt.Errorf("user %q may not insert, update and delete in leaderboard.%s; grant it, or name another user", s.config.User, t.name))
			}
		}
		return errors.Join(refused...)
	})
}

// transact runs do in one transaction on its own connection. If it returns an error
// other than ErrUnsure, the database is unchanged. After a deadlock, which here only
// kernelbot's own transactions can cause, it runs do again.
func (s *Store) transact(ctx context.Context, mode pgx.TxAccessMode, do func(context.Context, pgx.Tx) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.call)
	defer cancel()
	for range attempts {
		if err = s.attempt(ctx, mode, do); !errors.Is(err, errInTheWay) {
			break
		}
	}
	return err
}

func (s *Store) attempt(ctx context.Context, mode pgx.TxAccessMode, do func(context.Context, pgx.Tx) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { // ends a transaction that was not committed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	tx, id, err := s.begin(ctx, conn, mode)
	if err == nil {
		err = do(ctx, tx)
	}
	if mode == pgx.ReadOnly {
		return s.plain(ctx, err)
	}
	if err == nil {
		if err = tx.Commit(ctx); err == nil {
			return nil
		}
		switch s.fate(ctx, id) {
		case "committed":
			return nil
		case "aborted":
		default:
			return fmt.Errorf("%w: %w", s.plain(ctx, err), ErrUnsure)
		}
	}
	return fmt.Errorf("%w; nothing was changed", s.plain(ctx, err))
}

// begin starts a transaction with its bounds and, if it may write, returns an ID by
// which the server knows it later.
func (s *Store) begin(ctx context.Context, conn *pgx.Conn, mode pgx.TxAccessMode) (tx pgx.Tx, id int64, err error) {
	if tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode}); err != nil {
		return nil, 0, err
	}
	// In the transaction, not at the start of the session, which poolers refuse.
	ms := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	err = tx.QueryRow(ctx, `SELECT CASE WHEN $4 THEN txid_current() ELSE 0 END, set_config('statement_timeout', $1, true),
		set_config('lock_timeout', $2, true), set_config('idle_in_transaction_session_timeout', $3, true)`,
		ms(s.limits.statement), ms(s.limits.lock), ms(s.limits.call), mode == pgx.ReadWrite).Scan(&id, nil, nil, nil)
	return tx, id, err
}

// ErrUnsure means that the connection was lost during the commit and that the server
// could not be asked about the outcome.
var ErrUnsure = errors.New("unknown whether the database stored everything or nothing")

// fate asks over another connection what became of a transaction. It returns
// "committed", "aborted", or anything else if the outcome is unknown.
func (s *Store) fate(ctx context.Context, id int64) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.connect+s.limits.lock)
	defer cancel()
	for {
		conn, err := s.connect(ctx)
		if err != nil {
			return ""
		}
		var fate *string
		err = conn.QueryRow(ctx, "SELECT txid_status($1)", id).Scan(&fate)
		_ = conn.Close(ctx)
		if err != nil || fate == nil {
			return ""
		}
		if *fate != "in progress" {
			return *fate
		}
		if limit.Sleep(ctx, 100*time.Millisecond) != nil {
			return ""
		}
	}
}
