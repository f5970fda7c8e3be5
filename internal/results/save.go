package results

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpu-mode/kbnode/internal/text"
)

// maxName and maxCode bound the fields of a Record, in bytes; maxTask is the limit of a
// payload's JSON.
const (
	maxName = 1000
	maxCode = 16 << 20
	maxTask = 16 << 20
)

// The leaderboard's creator is no one, and it has no forum thread.
const (
	creator = 0
	forum   = -1
)

// check reports everything that PostgreSQL, or kernelbot when it reads the rows, would
// not accept.
func (r *Record) check() error {
	var bad []error
	for _, t := range []struct{ what, text string }{
		{"leaderboard's name", r.Leaderboard}, {"GPU type", r.GPU}, {"user's id", r.UserID},
		{"user's name", r.UserName}, {"submission's file name", r.File},
	} {
		if t.text == "" || len(t.text) > maxName || !utf8.ValidString(t.text) || !text.Plain(t.text) {
			bad = append(bad, fmt.Errorf("the %s %.60q is empty, too long or not plain text; give another", t.what, t.text))
		}
	}
	if r.Description = strings.ToValidUTF8(strings.ReplaceAll(r.Description, "\x00", "\ufffd"), "\ufffd"); len(r.Description) > maxTask {
		bad = append(bad, fmt.Errorf("the description is over %d bytes; shorten it", maxTask))
	}
	if !utf8.ValidString(r.Code) || len(r.Code) > maxCode {
		bad = append(bad, fmt.Errorf("the submission is not UTF-8 of at most %d bytes; fix it", maxCode))
	}
	if len(r.Task) > maxTask || !json.Valid(r.Task) || !strings.HasPrefix(strings.TrimLeft(string(r.Task), " \t\r\n"), "{") {
		bad = append(bad, fmt.Errorf("the task is not a JSON object of at most %d bytes; fix it", maxTask))
	}
	if r.Deadline.IsZero() || r.Submitted.IsZero() {
		bad = append(bad, errors.New("the deadline or the time of submission is missing"))
	}
	return errors.Join(bad...)
}

// Save creates a leaderboard and stores a submission to it with its runs, all in one
// transaction. As in kernelbot, submissions with the same text share the code, and
// those of a user the user. If a leaderboard of that name exists, Save returns
// ErrExists. With ErrUnsure, the Stored is what may be in the database, for Remove.
func (s *Store) Save(ctx context.Context, r Record) (Stored, error) {
	if err := r.check(); err != nil {
		return Stored{}, fmt.Errorf("store leaderboard: %w", err)
	}
	st := Stored{Name: r.Leaderboard, GPU: r.GPU, User: r.UserID, Hash: fmt.Sprintf("%x", sha256.Sum256([]byte(r.Code)))}
	err := s.transact(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx) error { return st.insert(ctx, tx, &r) })
	if err != nil {
		err = fmt.Errorf("store leaderboard %q: %w", r.Leaderboard, err)
		if !errors.Is(err, ErrUnsure) {
			st = Stored{}
		}
	}
	return st, err
}

// insert locks in the same order as remove: user, code.
func (st *Stored) insert(ctx context.Context, tx pgx.Tx, r *Record) error {
	st.Runs = nil
	err := tx.QueryRow(ctx, `INSERT INTO leaderboard.leaderboard (name, deadline, task, creator_id, forum_id, description)
		VALUES ($1, $2, $3, $4, $5, $6) RETURNING id`,
		r.Leaderboard, r.Deadline, string(r.Task), creator, forum, r.Description).Scan(&st.Leaderboard)
	if refusal, is := errors.AsType[*pgconn.PgError](err); is && refusal.Code == "23505" {
		return fmt.Errorf("%w; choose another name, or remove it if it is left from an earlier run", ErrExists)
	}
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO leaderboard.gpu_type (leaderboard_id, gpu_type) VALUES ($1, $2)", st.Leaderboard, r.GPU)
	}
	if err == nil {
		st.UserIsNew, err = insertOrShare(ctx, tx, &st.User,
			"INSERT INTO leaderboard.user_info (id, user_name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING id",
			"SELECT id FROM leaderboard.user_info WHERE id = $1 FOR KEY SHARE", r.UserID, r.UserName)
	}
	if err == nil {
		st.CodeIsNew, err = insertOrShare(ctx, tx, &st.Code,
			"INSERT INTO leaderboard.code_files (code) VALUES ($1) ON CONFLICT (hash) DO NOTHING RETURNING id",
			"SELECT id FROM leaderboard.code_files WHERE hash = encode(sha256($1::bytea), 'hex') FOR KEY SHARE", []byte(r.Code))
	}
	if err == nil {
		err = tx.QueryRow(ctx, `INSERT INTO leaderboard.submission (leaderboard_id, file_name, user_id, code_id, submission_time, done)
			VALUES ($1, $2, $3, $4, $5, true) RETURNING id`,
			st.Leaderboard, r.File, st.User, st.Code, r.Submitted).Scan(&st.Submission)
	}
	for i := range r.Runs {
		if err != nil {
			return err
		}
		var id int64
		run := &r.Runs[i]
		err = tx.QueryRow(ctx, `INSERT INTO leaderboard.runs (submission_id, start_time, end_time, mode, secret, runner,
				score, passed, compilation, meta, result, system_info)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) RETURNING id`,
			st.Submission, run.Start, run.End, run.Mode, run.Secret, run.Runner,
			run.score(), run.Passed, nullable(run.Compile), nullable(run.Meta), nullable(run.Result), nullable(run.System)).Scan(&id)
		st.Runs = append(st.Runs, id)
	}
	return err
}

// insertOrShare inserts a row, or finds the existing one and keeps it from being
// deleted until the transaction ends. It tries again if the row is deleted between the
// two. The first of args identifies the row.
func insertOrShare(ctx context.Context, tx pgx.Tx, id any, insert, find string, args ...any) (isNew bool, err error) {
	for range 3 {
		if err = tx.QueryRow(ctx, insert, args...).Scan(id); !errors.Is(err, pgx.ErrNoRows) {
			return err == nil, err
		}
		if err = tx.QueryRow(ctx, find, args[0]).Scan(id); !errors.Is(err, pgx.ErrNoRows) {
			return false, err
		}
	}
	return false, errors.New("others are creating and removing the same user or code; try again")
}

// score returns the score as a numeric: the shortest decimal number with its value.
func (r *Run) score() any {
	if r.Score == nil {
		return nil
	}
	return strconv.FormatFloat(*r.Score, 'g', -1, 64)
}

// nullable returns a JSON text, or NULL for nil.
func nullable(doc json.RawMessage) any {
	if doc == nil {
		return nil
	}
	return string(doc)
}

// stamp formats a time with the microseconds of a timestamptz.
func stamp(t time.Time) string { return t.Truncate(time.Microsecond).UTC().Format(time.RFC3339Nano) }
