//go:build postgres

package e2e

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/gpu-mode/kbnode/internal/operate/results"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) { os.Exit(postgres.Main(&server, m.Run)) }

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
	for _, tt := range []struct {
		name    string
		do      func(w *bktest.Work, i int, kind Kind)
		mode    string
		cleanup bool
		spoil   string // run on the database in between
		left    int    // runs
		checks  map[string]string
	}{
		{"kept", nil, "leaderboard", false, "", 3, nil},
		{"mode test", nil, "test", false, "", 1, nil},
		{"removed", nil, "benchmark", true, "", 0, nil},
		{"a failing build", fails(Right), "leaderboard", true, "", 0, map[string]string{
			"evaluation, submission.py": "failed: no result", "database, stored": "not tried: submission.py has no result to store",
		}},
		{"a failing build of another", fails(Wrong), "leaderboard", true, "", 0, map[string]string{
			"evaluation, wrong.py": "failed: no result",
		}},
		{"other than it was sent", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN NEW.passed = false; RETURN NEW; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE INSERT ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, 0, map[string]string{
			"database, as it was stored": `failed: check leaderboard "kbnode-e2e-`,
		}},
		{"a table that takes nothing", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN RAISE ''no''; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE INSERT ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, 0, map[string]string{
			"database, stored": `failed: store leaderboard "kbnode-e2e-`,
		}},
		{"a row that stays", nil, "leaderboard", true, `CREATE FUNCTION f() RETURNS trigger AS 'BEGIN RAISE ''no''; END' LANGUAGE plpgsql;
			CREATE TRIGGER t BEFORE DELETE ON leaderboard.runs FOR EACH ROW EXECUTE FUNCTION f()`, 3, map[string]string{
			"database, removed": `failed: remove leaderboard "kbnode-e2e-`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dsn, admin := server.New(t)
			store, err := results.Open(t.Context(), dsn)
			must.Do(t, err)
			postgres.Exec(t, admin, tt.spoil)
			var r *Report
			synctest.Test(t, func(t *testing.T) {
				r, _ = node{agents: 3, do: tt.do}.prove(t, t.Context(), Options{Mode: tt.mode, Store: store, Cleanup: tt.cleanup, Parts: []string{Evaluation}})
				compare(t, r, tt.checks)
			})
			want := map[string]int{}
			if tt.left > 0 {
				want = map[string]int{"leaderboard": 1, "gpu_type": 1, "user_info": 1, "code_files": 1, "submission": 1, "runs": tt.left}
			}
			must.Equal(t, want, postgres.Rows(t, admin))
			if (r.Stored != nil) != (tt.left > 0) {
				t.Errorf("stored is %+v", r.Stored)
			}
			if tt.name != "kept" {
				return
			}
			var board, gpu, code, task string
			var score float64
			must.Do(t, admin.QueryRow(t.Context(), `SELECT l.name, r.runner, convert_from(c.code, 'UTF8'), l.task->'files'->>'submission.py', r.score::float8
				FROM leaderboard.runs r JOIN leaderboard.submission s ON s.id = r.submission_id JOIN leaderboard.code_files c ON c.id = s.code_id
				JOIN leaderboard.leaderboard l ON l.id = s.leaderboard_id WHERE r.score IS NOT NULL`).Scan(&board, &gpu, &code, &task, &score))
			p, err := Load(DefaultProblem)
			must.Do(t, err)
			must.Equal(t, []any{r.RunID, "B200_BK", p.Submissions[0].Text, "@SUBMISSION@", 4.096e-6}, []any{board, gpu, code, task, score})
		})
	}
}
