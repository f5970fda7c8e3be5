//go:build postgres

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/internal/results"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) {
	if os.Getenv("KBNODE_TEST_RUNNER") != "" {
		os.Exit(work(m))
	}
	s, err := postgres.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server = s
	code := work(m)
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func administrator(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), server.DSN("postgres", database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// rows counts the rows of kernelbot's tables.
func rows(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	var list []string
	for _, table := range []string{"leaderboard", "gpu_type", "user_info", "code_files", "submission", "runs"} {
		var n int
		if err := c.QueryRow(t.Context(), "SELECT count(*) FROM leaderboard."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(n))
	}
	return strings.Join(list, " ")
}

// TestDatabase checks that what was evaluated is stored and removed again, even if something is
// wrong with the node. A submission that did not pass is not stored.
func TestDatabase(t *testing.T) {
	fails := func(bad Kind) func(w *bktest.Work, _ int, kind Kind) {
		return func(w *bktest.Work, _ int, kind Kind) {
			if kind == bad {
				w.Exit, w.Files = 1, nil
			}
		}
	}
	for i, tt := range []struct {
		name    string
		do      func(w *bktest.Work, i int, kind Kind)
		mode    string
		cleanup bool
		spoil   string // run on the database in between
		left    string
		checks  map[string]string
	}{
		{"kept", nil, "leaderboard", false, "", "1 1 1 1 1 3", nil},
		{"mode test", nil, "test", false, "", "1 1 1 1 1 1", nil},
		{"removed", nil, "benchmark", true, "", "0 0 0 0 0 0", nil},
		{"a failing build", fails(Right), "leaderboard", true, "", "0 0 0 0 0 0", map[string]string{
			"evaluation, submission.py": "failed: no result", "database, stored": "not tried: submission.py has no result to store",
		}},
		{"a failing build of another", fails(Wrong), "leaderboard", true, "", "0 0 0 0 0 0", map[string]string{
			"evaluation, wrong.py": "failed: no result",
		}},
		{"other than it was sent", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN NEW.passed = false; RETURN NEW; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE INSERT ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, "0 0 0 0 0 0", map[string]string{
			"database, as it was stored": `failed: check leaderboard "kbnode-e2e-`,
		}},
		{"a table that takes nothing", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN RAISE ''no''; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE INSERT ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, "0 0 0 0 0 0", map[string]string{
			"database, stored": `failed: store leaderboard "kbnode-e2e-`,
		}},
		{"a row that stays", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN RAISE ''no''; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE DELETE ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, "1 1 1 1 1 3", map[string]string{
			"database, removed": `failed: remove leaderboard "kbnode-e2e-`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprint("e2e", i)
			if _, err := administrator(t, "postgres").Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			admin := administrator(t, name)
			if _, err := admin.Exec(t.Context(), tt.spoil); err != nil {
				t.Fatal(err)
			}
			var r *Report
			synctest.Test(t, func(t *testing.T) {
				store, err := results.Open(t.Context(), server.DSN("postgres", name))
				if err != nil {
					t.Fatal(err)
				}
				r, _ = node{agents: 3, do: tt.do}.prove(t, t.Context(), Options{Mode: tt.mode, Store: store, Cleanup: tt.cleanup, Parts: []string{Evaluation}})
				compare(t, r, tt.checks)
			})
			if got := rows(t, admin); got != tt.left {
				t.Errorf("left are %s, want %s", got, tt.left)
			}
			if (r.Stored != nil) != strings.HasPrefix(tt.left, "1") {
				t.Errorf("stored is %+v", r.Stored)
			}
			if tt.name != "kept" {
				return
			}
			var board, gpu, code, task string
			var score float64
			err := admin.QueryRow(t.Context(), `SELECT l.name, r.runner, convert_from(c.code, 'UTF8'), l.task->'files'->>'submission.py', r.score::float8
				FROM leaderboard.runs r JOIN leaderboard.submission s ON s.id = r.submission_id JOIN leaderboard.code_files c ON c.id = s.code_id
				JOIN leaderboard.leaderboard l ON l.id = s.leaderboard_id WHERE r.score IS NOT NULL`).Scan(&board, &gpu, &code, &task, &score)
			p, loadErr := Load(DefaultProblem)
			if err != nil || loadErr != nil {
				t.Fatal(err, loadErr)
			}
			if d := cmp.Diff([]any{r.RunID, "B200_BK", p.Submissions[0].Text, "@SUBMISSION@", 4.096e-6}, []any{board, gpu, code, task, score}); d != "" {
				t.Error(d)
			}
		})
	}
}
