package results

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
	var id int64
	err := tx.QueryRow(ctx, "SELECT id FROM leaderboard.leaderboard WHERE id = $1 AND name = $2 FOR UPDATE", st.Leaderboard, st.Name).Scan(&id)
	// Lock before anything is deleted, and in the order of insert: to delete a user or
	// code, the server waits for any transaction that is deleting a submission of
	// theirs.
	if err == nil && st.UserIsNew {
		_, err = tx.Exec(ctx, "SELECT FROM leaderboard.user_info WHERE id = $1 FOR UPDATE", st.User)
	}
	if err == nil && st.CodeIsNew {
		_, err = tx.Exec(ctx, "SELECT FROM leaderboard.code_files WHERE id = $1 FOR UPDATE", st.Code)
	}
	if err == nil {
		err = st.removeLeaderboard(ctx, tx)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if st.UserIsNew {
		if err := removeUnused(ctx, tx, "DELETE FROM leaderboard.user_info WHERE id = $1", st.User); err != nil {
			return err
		}
	}
	if st.CodeIsNew {
		return removeUnused(ctx, tx, "DELETE FROM leaderboard.code_files WHERE id = $1 AND hash = $2", st.Code, st.Hash)
	}
	return nil
}

func (st *Stored) removeLeaderboard(ctx context.Context, tx pgx.Tx) error {
	var others int
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM leaderboard.submission WHERE leaderboard_id = $1 AND id <> $2",
		st.Leaderboard, st.Submission).Scan(&others); err != nil {
		return err
	}
	if others > 0 {
		return fmt.Errorf("%w (other submissions: %d); keep it, or delete it in kernelbot", ErrShared, others)
	}
	for _, d := range []struct {
		statement string
		args      []any
	}{
		{"DELETE FROM leaderboard.runs WHERE id = ANY($1::int8[]) AND submission_id = $2", []any{st.Runs, st.Submission}},
		{"DELETE FROM leaderboard.submission WHERE id = $1 AND leaderboard_id = $2", []any{st.Submission, st.Leaderboard}},
		{"DELETE FROM leaderboard.gpu_type WHERE leaderboard_id = $1 AND gpu_type = $2", []any{st.Leaderboard, st.GPU}},
		{"DELETE FROM leaderboard.leaderboard WHERE id = $1", []any{st.Leaderboard}},
	} {
		if _, err := tx.Exec(ctx, d.statement, d.args...); err != nil {
			return err
		}
	}
	return nil
}

// removeUnused deletes a row unless another one refers to it. It relies on the foreign
// keys because, unlike a query, they also see rows that are being inserted.
func removeUnused(ctx context.Context, tx pgx.Tx, statement string, key ...any) error {
	err := pgx.BeginFunc(ctx, tx, func(save pgx.Tx) error {
		_, err := save.Exec(ctx, statement, key...)
		return err
	})
	if refusal, is := errors.AsType[*pgconn.PgError](err); is && refusal.Code == "23503" {
		return nil
	}
	return err
}
