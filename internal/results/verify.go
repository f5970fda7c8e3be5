package results

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Verify reads what Save stored over another connection and compares all of it with the
// Record. The error lists every difference.
func (s *Store) Verify(ctx context.Context, st Stored, r Record) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("check leaderboard: %w", err)
	}
	var d differences
	err := s.transact(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx) error {
		for _, read := range []func() error{
			func() error { return d.leaderboard(ctx, tx, st, &r) },
			func() error { return d.submission(ctx, tx, st, &r) },
			func() error { return d.runs(ctx, tx, st, &r) },
		} {
			if err := read(); errors.Is(err, pgx.ErrNoRows) {
				d = append(d, errors.New("a row is missing"))
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err = errors.Join(err, errors.Join(d...)); err != nil {
		return fmt.Errorf("check leaderboard %q: %w", st.Name, err)
	}
	return nil
}

// differences collects the differences that Verify reports.
type differences []error

func (d *differences) compare(what string, got, want any) {
	g, w := fmt.Sprint(got), fmt.Sprint(want)
	if g == w {
		return
	}
	same := 0
	for same < min(len(g), len(w)) && g[same] == w[same] {
		same++
	}
	from := max(0, same-10) // so that long texts show where they differ
	*d = append(*d, fmt.Errorf("%s: %.50q is stored, not %.50q, from byte %d", what, g[min(from, len(g)):], w[min(from, len(w)):], from))
}

func (d *differences) leaderboard(ctx context.Context, tx pgx.Tx, st Stored, r *Record) error {
	var name, task, want, description string
	var deadline time.Time
	var gpus []string
	// The server formats both tasks, so that only their content can differ.
	err := tx.QueryRow(ctx, `SELECT name, deadline, task::text, $2::jsonb::text, coalesce(description, ''),
			ARRAY(SELECT gpu_type FROM leaderboard.gpu_type WHERE leaderboard_id = l.id)
		FROM leaderboard.leaderboard l WHERE id = $1`, st.Leaderboard, string(r.Task)).
		Scan(&name, &deadline, &task, &want, &description, &gpus)
	if err != nil {
		return err
	}
	d.compare("leaderboard.name", name, r.Leaderboard)
	d.compare("leaderboard.deadline", stamp(deadline), stamp(r.Deadline))
	d.compare("leaderboard.task", task, want)
	d.compare("leaderboard.description", description, r.Description)
	d.compare("gpu_type", strings.Join(gpus, ", "), r.GPU)
	return nil
}

func (d *differences) submission(ctx context.Context, tx pgx.Tx, st Stored, r *Record) error {
	var board int64
	var file, user, name string
	var at time.Time
	var done bool
	var code []byte
	err := tx.QueryRow(ctx, `SELECT s.leaderboard_id, s.file_name, s.user_id, coalesce(u.user_name, ''), s.submission_time, s.done, c.code
		FROM leaderboard.submission s
		JOIN leaderboard.user_info u ON u.id = s.user_id
		JOIN leaderboard.code_files c ON c.id = s.code_id
		WHERE s.id = $1`, st.Submission).Scan(&board, &file, &user, &name, &at, &done, &code)
	if err != nil {
		return err
	}
	d.compare("submission.leaderboard_id", board, st.Leaderboard)
	d.compare("submission.file_name", file, r.File)
	d.compare("submission.user_id", user, r.UserID)
	if st.UserIsNew {
		d.compare("user_info.user_name", name, r.UserName)
	}
	d.compare("submission.submission_time", stamp(at), stamp(r.Submitted))
	d.compare("submission.done", done, true)
	d.compare("code_files.code", string(code), r.Code)
	return nil
}

func (d *differences) runs(ctx context.Context, tx pgx.Tx, st Stored, r *Record) error {
	rows, err := tx.Query(ctx, "SELECT id FROM leaderboard.runs WHERE submission_id = $1 ORDER BY id", st.Submission)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	if len(r.Runs) != len(st.Runs) || !slices.Equal(ids, st.Runs) {
		*d = append(*d, fmt.Errorf("runs: %d are stored, not %d, or they are not those that were stored", len(ids), len(r.Runs)))
		return nil
	}
	for i := range r.Runs {
		if err := d.run(ctx, tx, st.Runs[i], &r.Runs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *differences) run(ctx context.Context, tx pgx.Tx, id int64, want *Run) error {
	var got Run
	var score, wanted *float64
	var docs [4]struct{ stored, want *string }
	err := tx.QueryRow(ctx, `SELECT mode, secret, runner, start_time, end_time, passed, score::float8, $2::numeric::float8,
			compilation::text, $3::jsonb::text, meta::text, $4::jsonb::text,
			result::text, $5::jsonb::text, system_info::text, $6::jsonb::text
		FROM leaderboard.runs WHERE id = $1`, id, want.score(),
		nullable(want.Compile), nullable(want.Meta), nullable(want.Result), nullable(want.System)).
		Scan(&got.Mode, &got.Secret, &got.Runner, &got.Start, &got.End, &got.Passed, &score, &wanted,
			&docs[0].stored, &docs[0].want, &docs[1].stored, &docs[1].want,
			&docs[2].stored, &docs[2].want, &docs[3].stored, &docs[3].want)
	if err != nil {
		return err
	}
	of := func(column string) string { return fmt.Sprintf("run %q: %s", want.Mode, column) }
	d.compare(of("mode"), got.Mode, want.Mode)
	d.compare(of("secret"), got.Secret, want.Secret)
	d.compare(of("runner"), got.Runner, want.Runner)
	d.compare(of("start_time"), stamp(got.Start), stamp(want.Start))
	d.compare(of("end_time"), stamp(got.End), stamp(want.End))
	d.compare(of("passed"), got.Passed, want.Passed)
	d.compare(of("score"), orNull(score), orNull(wanted))
	for i, column := range []string{"compilation", "meta", "result", "system_info"} {
		d.compare(of(column), orNull(docs[i].stored), orNull(docs[i].want))
	}
	return nil
}

func orNull[T any](v *T) string {
	if v == nil {
		return "NULL"
	}
	return fmt.Sprint(*v)
}
