// Package results stores the results of a submission in kernelbot's PostgreSQL
// database, in the rows that kernelbot's backend would have written, reads them back,
// and removes them. Only this package accesses PostgreSQL.
package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// Record is a submission and everything that its rows refer to.
type Record struct {
	Leaderboard string // its name, which must be new
	Description string
	Task        json.RawMessage // the task's definition as kernelbot keeps it: an object
	GPU         string          // the leaderboard's only GPU type, such as B200_BK
	UserID      string
	UserName    string // for a new user; an existing one keeps their name
	File        string // the submission's name
	Code        string
	Submitted   time.Time // also the leaderboard's deadline, so that no one submits to it
	Runs        []Run     // as RunsOf returns them
}

// Run is one evaluation of the submission.
type Run struct {
	Mode       string // test, benchmark, leaderboard, profile.0 …
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

// limits bound the time that a server that does not answer, or the way to it, may cost.
type limits struct {
	connect time.Duration // to any of the server's addresses
	call    time.Duration // all of Open, Save, Verify or Remove
	lock    time.Duration // wait for another transaction's lock
}

var defaults = limits{connect: 10 * time.Second, call: time.Minute, lock: 10 * time.Second}

// attempts is how often a transaction is tried, after deadlocks, which here only
// kernelbot's own transactions can cause.
const attempts = 5

// ErrUnsure means that the connection was lost during the commit.
var ErrUnsure = errors.New("unknown whether the database stored everything or nothing")

// Open connects to the database that a DSN names (a URL or key=value words; missing
// parts come from environment variables such as PGHOST and PGPASSWORD, ~/.pgpass and
// the service file) and checks that kernelbot's tables exist and may be written. No
// error of this package shows the DSN or a password.
func Open(ctx context.Context, dsn string) (*Store, error) { return open(ctx, dsn, defaults) }

func open(ctx context.Context, dsn string, l limits) (*Store, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	s := &Store{config, l}
	return s, s.transact(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx) error {
		var refused []error
		for _, row := range rowsOf(&Record{Runs: make([]Run, 1)}, &Stored{Runs: make([]int64, 1)}) {
			// Columns first: the error for a missing table is clearer.
			if _, err := tx.Exec(ctx, "SELECT "+strings.Join(row.columns, ", ")+" FROM "+row.table+" LIMIT 0"); err != nil {
				return err
			}
			var may bool
			if err := tx.QueryRow(ctx, `SELECT has_table_privilege($1, 'INSERT') AND has_table_privilege($1, 'UPDATE')
				AND has_table_privilege($1, 'DELETE')`, row.table).Scan(&may); err != nil {
				return err
			}
			if !may {
				refused = append(refused, fmt.Errorf("user %q may not insert, update and delete in %s; grant it, or name another user", s.config.User, row.table))
			}
		}
		return errors.Join(refused...)
	})
}

// transact runs do in one transaction on its own connection. If it returns an error
// other than ErrUnsure, the database is unchanged.
func (s *Store) transact(ctx context.Context, mode pgx.TxAccessMode, do func(context.Context, pgx.Tx) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.call)
	defer cancel()
	for range attempts {
		if err = s.attempt(ctx, mode, do); !errors.Is(err, errConflict) {
			break
		}
	}
	return err
}

func (s *Store) attempt(ctx context.Context, mode pgx.TxAccessMode, do func(context.Context, pgx.Tx) error) error {
	within, cancel := context.WithTimeout(ctx, s.limits.connect)
	defer cancel()
	conn, err := pgx.ConnectConfig(within, s.config)
	if err != nil {
		return s.unreachable(ctx, err)
	}
	defer func() { // ends a transaction that was not committed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: mode})
	if err == nil { // not at the start of the session, which poolers refuse
		_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", s.limits.lock.Milliseconds()))
	}
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
		if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
			return fmt.Errorf("%w: %w", s.plain(ctx, err), ErrUnsure)
		}
	}
	return fmt.Errorf("%w; nothing was changed", s.plain(ctx, err))
}

// errDSN is the only error for a DSN that cannot be parsed: a misplaced part may be the
// password.
var errDSN = errors.New("the database's DSN cannot be read; write postgres://USER@HOST:PORT/NAME or host=HOST dbname=NAME user=USER, " +
	"with the password in PGPASSWORD or ~/.pgpass (in a URL, special characters as %XX), and a service from the service file")

// parse parses a DSN. It refuses one in which a password that is not quoted may have
// become a host, a database or a setting, which errors would show.
func parse(dsn string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errDSN
	}
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		u, err := url.Parse(dsn)
		if err != nil || u.Fragment != "" || strings.Count(dsn, "@") > 1 || strings.Contains(u.Path+u.RawQuery, "@") {
			return nil, errDSN
		}
	}
	for key := range config.RuntimeParams {
		if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_.") != "" {
			return nil, errDSN
		}
	}
	if _, named := config.RuntimeParams["application_name"]; !named {
		config.RuntimeParams["application_name"] = "kbnode"
	}
	// No prepared statements: behind a pooler, the next transaction may use another
	// server connection.
	config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	return config, nil
}

// HasPassword reports whether a DSN may contain a password and so must not be on a
// command line, which everyone on the machine sees. False positives are possible.
func HasPassword(dsn string) bool {
	if hasPassword().MatchString(dsn) {
		return true
	}
	_, rest, isURL := strings.Cut(dsn, "://")
	at := strings.LastIndex(rest, "@")
	return isURL && at >= 0 && strings.Contains(rest[:at], ":")
}

// hasPassword matches password and sslpassword as a keyword and in a query.
var hasPassword = lazy.Regexp(`(?i)password\s*=`)
