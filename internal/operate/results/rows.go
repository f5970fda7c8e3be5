package results

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

type row struct {
	table   string // in schema leaderboard
	columns []string
	values  []any
	key     string // the column with its ID
	id      any    // where that is kept
	unique  string // the column by which others may have the same row; empty if they cannot
	isNew   *bool  // whether Save created it
}

// rowsOf returns the rows of r in the order in which Save inserts them; Remove deletes
// them in reverse. IDs are pointers into st, since each is known only when its row is there.
func rowsOf(r *Record, st *Stored) []row {
	own := true
	rows := []row{
		{
			"leaderboard", []string{"name", "deadline", "task", "creator_id", "forum_id", "description"},
			[]any{r.Leaderboard, r.Submitted, r.Task, 0, -1, "made by kbnode e2e"}, // no creator and no forum thread
			"id", &st.Leaderboard, "", &own,
		},
		{"gpu_type", []string{"leaderboard_id", "gpu_type"}, []any{&st.Leaderboard, r.GPU}, "leaderboard_id", &st.Leaderboard, "", &own},
		{"user_info", []string{"user_name", "id"}, []any{"kbnode e2e", r.UserID}, "id", &st.User, "id", &st.UserIsNew},
		{"code_files", []string{"code"}, []any{[]byte(r.Code)}, "id", &st.Code, "hash", &st.CodeIsNew},
		{
			"submission", []string{"leaderboard_id", "file_name", "user_id", "code_id", "submission_time", "done"},
			[]any{&st.Leaderboard, r.File, &st.User, &st.Code, r.Submitted, true}, "id", &st.Submission, "", &own,
		},
	}
	for i, run := range r.Runs {
		rows = append(rows, row{
			"runs", append([]string{"submission_id"}, runColumns...), append([]any{&st.Submission}, run...), "id", &st.Runs[i], "", &own,
		})
	}
	return rows
}

// Save creates a leaderboard and stores a submission to it with its runs, all in one
// transaction. As in kernelbot, submissions with the same text share the code, and
// those of a user the user.
func (s *Store) Save(ctx context.Context, r Record) (st Stored, err error) {
	err = s.transact(ctx, true, func(ctx context.Context, tx pgx.Tx) (err error) {
		st, err = r.insert(ctx, tx)
		return err
	})
	if err != nil {
		return st, fmt.Errorf("store leaderboard %q: %w", r.Leaderboard, err)
	}
	return st, nil
}

func (r *Record) insert(ctx context.Context, tx pgx.Tx) (Stored, error) {
	st := Stored{Name: r.Leaderboard, GPU: r.GPU, Hash: fmt.Sprintf("%x", sha256.Sum256([]byte(r.Code))), Runs: make([]int64, len(r.Runs))}
	for _, row := range rowsOf(r, &st) {
		if err := row.insert(ctx, tx); err != nil {
			return st, err
		}
	}
	return st, nil
}

func (r *row) insert(ctx context.Context, tx pgx.Tx) error {
	places := make([]string, len(r.values))
	for i := range places {
		places[i] = fmt.Sprintf("$%d", i+1)
	}
	insert := "INSERT INTO leaderboard." + r.table + " (" + strings.Join(r.columns, ", ") + ") VALUES (" + strings.Join(places, ", ") + ")"
	if r.unique != "" {
		// Unlike DO NOTHING, an update without effect returns the row that is there, and keeps
		// it from being deleted until the transaction ends.
		insert += fmt.Sprintf(" ON CONFLICT (%s) DO UPDATE SET %[2]s = %[3]s.%[2]s", r.unique, r.columns[0], r.table)
	}
	// Only a new row has no xmax.
	return tx.QueryRow(ctx, insert+" RETURNING "+r.key+", xmax = 0", r.values...).Scan(r.id, r.isNew)
}

// Verify compares what Save stored with the Record, over another connection. The error lists
// every column that differs. The server compares, so that only content counts.
func (s *Store) Verify(ctx context.Context, st Stored, r Record) error {
	var found []error
	err := s.transact(ctx, false, func(ctx context.Context, tx pgx.Tx) error {
		for _, row := range rowsOf(&r, &st) {
			if !*row.isNew {
				continue // others may change it
			}
			checks := make([]string, len(row.columns))
			for i, c := range row.columns {
				checks[i] = fmt.Sprintf("CASE WHEN %[1]s IS DISTINCT FROM $%[2]d THEN '%[1]s' END", c, i+2)
			}
			query := "SELECT concat_ws(', ', " + strings.Join(checks, ", ") + ") FROM leaderboard." + row.table + " WHERE " + row.key + " = $1"
			var differ string
			err := tx.QueryRow(ctx, query, append([]any{row.id}, row.values...)...).Scan(&differ)
			if errors.Is(err, pgx.ErrNoRows) {
				differ, err = "the row", nil
			}
			if err != nil {
				return err
			}
			if differ != "" {
				found = append(found, fmt.Errorf("%s: not as it was sent: %s", row.table, differ))
			}
		}
		return nil
	})
	if err = errors.Join(err, errors.Join(found...)); err != nil {
		return fmt.Errorf("check leaderboard %q: %w", st.Name, err)
	}
	return nil
}

// Remove deletes what Save created and what kernelbot itself attaches to it and deletes
// with it. It deletes the code and user only if Save created them and no one else uses
// them. If rows of others refer to the leaderboard or the submission, it returns an error
// and deletes nothing. Missing rows are not an error.
func (s *Store) Remove(ctx context.Context, st Stored) error {
	if err := s.transact(ctx, true, st.remove); err != nil {
		return fmt.Errorf("remove leaderboard %q: %w", st.Name, err)
	}
	return nil
}

func (st *Stored) remove(ctx context.Context, tx pgx.Tx) error {
	for _, row := range slices.Backward(rowsOf(&Record{Runs: make([]Run, len(st.Runs))}, st)) {
		if !*row.isNew {
			continue
		}
		// Unlike a query, the foreign keys also see rows that are being inserted.
		err := pgx.BeginFunc(ctx, tx, func(save pgx.Tx) error {
			_, err := save.Exec(ctx, "DELETE FROM leaderboard."+row.table+" WHERE "+row.key+" = $1", row.id)
			return err
		})
		refusal, refused := errors.AsType[*pgconn.PgError](err)
		if used := refused && refusal.Code == "23503" && row.unique != ""; err != nil && !used {
			return err
		}
	}
	return nil
}
