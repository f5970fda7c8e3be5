package results

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// row is a row that a Record becomes.
type row struct {
	name    string // in Verify's errors
	table   string
	columns []string
	values  []any
	id      any    // where its ID is kept; nil if it has none
	where   string // finds the row by its ID, $1; without an ID, by the leaderboard's
	shared  string // finds the same row of others by the last value, $1; "" must be new
	isNew   *bool  // whether Save created a row that may be shared
}

// rowsOf returns the rows of r in the order in which Save inserts them, which is also that of
// their locks in remove. IDs are pointers into st, since each is known only when its row is
// there.
func rowsOf(r *Record, st *Stored) []row {
	const byID = "id = $1"
	rows := []row{
		{
			name: "leaderboard", table: "leaderboard.leaderboard", id: &st.Leaderboard, where: byID,
			columns: []string{"name", "deadline", "task", "creator_id", "forum_id", "description"},
			values:  []any{r.Leaderboard, r.Submitted, r.Task, 0, -1, r.Description}, // no creator and no forum thread
		},
		{
			name: "gpu_type", table: "leaderboard.gpu_type", where: "leaderboard_id = $1",
			columns: []string{"leaderboard_id", "gpu_type"}, values: []any{&st.Leaderboard, r.GPU},
		},
		{
			name: "user_info", table: "leaderboard.user_info", id: &st.User, where: byID, isNew: &st.UserIsNew,
			columns: []string{"user_name", "id"}, values: []any{r.UserName, r.UserID}, shared: byID,
		},
		{
			name: "code_files", table: "leaderboard.code_files", id: &st.Code, where: byID, isNew: &st.CodeIsNew,
			columns: []string{"code"}, values: []any{[]byte(r.Code)}, shared: "hash = encode(sha256($1::bytea), 'hex')",
		},
		{
			name: "submission", table: "leaderboard.submission", id: &st.Submission, where: byID,
			columns: []string{"leaderboard_id", "file_name", "user_id", "code_id", "submission_time", "done"},
			values:  []any{&st.Leaderboard, r.File, &st.User, &st.Code, r.Submitted, true},
		},
	}
	for i, run := range r.Runs {
		rows = append(rows, row{
			name: fmt.Sprintf("run %q", run.Mode), table: "leaderboard.runs", id: &st.Runs[i], where: byID,
			columns: []string{
				"submission_id", "start_time", "end_time", "mode", "secret", "runner", "score", "passed",
				"compilation", "meta", "result", "system_info",
			},
			values: []any{
				&st.Submission, run.Start, run.End, run.Mode, false, run.Runner, run.Score, run.Passed,
				run.Compile, run.Meta, run.Result, run.System,
			},
		})
	}
	return rows
}

// Save creates a leaderboard and stores a submission to it with its runs, all in one
// transaction. As in kernelbot, submissions with the same text share the code, and
// those of a user the user. If a leaderboard of that name exists, Save returns
// ErrExists. With ErrUnsure, the Stored is what may be in the database, for Remove.
func (s *Store) Save(ctx context.Context, r Record) (st Stored, err error) {
	err = s.transact(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx) error {
		st = Stored{Name: r.Leaderboard, GPU: r.GPU, Hash: fmt.Sprintf("%x", sha256.Sum256([]byte(r.Code))), Runs: make([]int64, len(r.Runs))}
		for _, row := range rowsOf(&r, &st) {
			if err := row.insert(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("store leaderboard %q: %w", r.Leaderboard, err)
		if !errors.Is(err, ErrUnsure) {
			st = Stored{}
		}
	}
	return st, err
}

// insert inserts a row. If others may have the same row, it uses theirs and keeps it from
// being deleted until the transaction ends; it tries again if the row is deleted in between.
func (r *row) insert(ctx context.Context, tx pgx.Tx) error {
	places := make([]string, len(r.values))
	for i := range places {
		places[i] = fmt.Sprintf("$%d", i+1)
	}
	insert := "INSERT INTO " + r.table + " (" + strings.Join(r.columns, ", ") + ") VALUES (" + strings.Join(places, ", ") + ")"
	switch {
	case r.id == nil:
		_, err := tx.Exec(ctx, insert, r.values...)
		return err
	case r.shared == "":
		return tx.QueryRow(ctx, insert+" RETURNING id", r.values...).Scan(r.id)
	}
	for range attempts {
		err := tx.QueryRow(ctx, insert+" ON CONFLICT DO NOTHING RETURNING id", r.values...).Scan(r.id)
		if *r.isNew = err == nil; !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		err = tx.QueryRow(ctx, "SELECT id FROM "+r.table+" WHERE "+r.shared+" FOR KEY SHARE", r.values[len(r.values)-1]).Scan(r.id)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	return errors.New("others are creating and removing the same user or code; try again")
}

// Verify reads what Save stored over another connection and compares all of it with the
// Record. The error lists every difference.
func (s *Store) Verify(ctx context.Context, st Stored, r Record) error {
	var found []error
	err := s.transact(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx) error {
		for _, row := range rowsOf(&r, &st) {
			differ, err := row.compare(ctx, tx, &st)
			if err != nil {
				return err
			}
			found = append(found, differ...)
		}
		var runs int
		err := tx.QueryRow(ctx, "SELECT count(*) FROM leaderboard.runs WHERE submission_id = $1", st.Submission).Scan(&runs)
		if runs != len(st.Runs) {
			found = append(found, fmt.Errorf("runs: %d are stored, not %d", runs, len(st.Runs)))
		}
		return err
	})
	if err = errors.Join(err, errors.Join(found...)); err != nil {
		return fmt.Errorf("check leaderboard %q: %w", st.Name, err)
	}
	return nil
}

// compare returns how a stored row differs from r.
func (r *row) compare(ctx context.Context, tx pgx.Tx, st *Stored) (found []error, err error) {
	if r.isNew != nil && !*r.isNew {
		return nil, nil // others may change it
	}
	id := r.id
	if id == nil {
		id = &st.Leaderboard
	}
	// The server compares, so that values differ only if their content does.
	checks := make([]string, len(r.columns))
	stored := make([]*string, len(r.columns))
	into := make([]any, len(r.columns))
	for i, c := range r.columns {
		checks[i] = fmt.Sprintf("CASE WHEN %[1]s IS DISTINCT FROM $%[2]d THEN coalesce(left(%[1]s::text, 50), 'NULL') END", c, i+2)
		into[i] = &stored[i]
	}
	err = tx.QueryRow(ctx, "SELECT "+strings.Join(checks, ", ")+" FROM "+r.table+" WHERE "+r.where, append([]any{id}, r.values...)...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return []error{fmt.Errorf("%s: the row is missing", r.name)}, nil
	}
	for i, got := range stored {
		if got != nil {
			found = append(found, fmt.Errorf("%s: %s: %q is stored, not what was sent", r.name, r.columns[i], *got))
		}
	}
	return found, err
}

// Remove deletes what Save created and what kernelbot itself attaches to it and deletes
// with it. It deletes the code and user only if Save created them and no one else uses
// them. If the leaderboard has submissions of others, it deletes nothing and returns
// ErrShared. Missing rows are not an error.
func (s *Store) Remove(ctx context.Context, st Stored) error {
	err := s.transact(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx) error { return st.remove(ctx, tx) })
	if err != nil {
		return fmt.Errorf("remove leaderboard %q: %w", st.Name, err)
	}
	return nil
}

func (st *Stored) remove(ctx context.Context, tx pgx.Tx) error {
	// Both the ID and the name: in a database that was set up again, the ID may be
	// someone else's. The lock keeps new submissions out until the end.
	var others int
	err := tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM leaderboard.submission WHERE leaderboard_id = l.id AND id <> $3)
		FROM leaderboard.leaderboard l WHERE id = $1 AND name = $2 FOR UPDATE`, st.Leaderboard, st.Name, st.Submission).Scan(&others)
	there := err == nil
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	case others > 0:
		return fmt.Errorf("%w (other submissions: %d); keep it, or delete it in kernelbot", ErrShared, others)
	}
	for _, d := range []struct {
		ours   bool
		shared bool // others may have begun to refer to it
		where  string
		args   []any
	}{
		{there, false, "runs WHERE id = ANY($1::int8[]) AND submission_id = $2", []any{st.Runs, st.Submission}},
		{there, false, "submission WHERE id = $1 AND leaderboard_id = $2", []any{st.Submission, st.Leaderboard}},
		{there, false, "gpu_type WHERE leaderboard_id = $1 AND gpu_type = $2", []any{st.Leaderboard, st.GPU}},
		{there, false, "leaderboard WHERE id = $1", []any{st.Leaderboard}},
		{st.UserIsNew, true, "user_info WHERE id = $1", []any{st.User}},
		{st.CodeIsNew, true, "code_files WHERE id = $1 AND hash = $2", []any{st.Code, st.Hash}},
	} {
		if !d.ours {
			continue
		}
		// Unlike a query, the foreign keys also see rows that are being inserted.
		err := pgx.BeginFunc(ctx, tx, func(save pgx.Tx) error {
			_, err := save.Exec(ctx, "DELETE FROM leaderboard."+d.where, d.args...)
			return err
		})
		if refusal, is := errors.AsType[*pgconn.PgError](err); is && refusal.Code == "23503" && d.shared {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
