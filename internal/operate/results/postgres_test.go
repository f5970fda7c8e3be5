//go:build postgres

package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) { os.Exit(postgres.Main(&server, m.Run)) }

// database creates a database with kernelbot's tables and opens it.
func database(t *testing.T) (*Store, *pgx.Conn, string) {
	t.Helper()
	dsn, admin := server.New(t)
	s, err := Open(t.Context(), dsn)
	must.Do(t, err)
	return s, admin, dsn
}

// record is a submission with three runs of every shape.
func record(t *testing.T, name string) Record {
	t.Helper()
	runs, err := RunsOf([]byte(resultOf(
		evaluated("test", compiled, true, `{"check":"pass","nul\u0000":"a\u0000\ud800","it's":"\"; DROP TABLE leaderboard.runs; --"}`),
		evaluated("benchmark", "null", false, `{}`),
		evaluated("leaderboard", "null", true, three))), "geom", "B200_BK")
	must.Do(t, err)
	return Record{
		Leaderboard: name,
		Task:        json.RawMessage(`{"lang":"py","files":{"a.py":"é\n"},"seed":null,"b":1.50,"tests":[{"n":1e2}]}`), GPU: "B200_BK",
		UserID: "42", File: "submission.py", Code: "print('é')\x00\n",
		Submitted: time.Date(2027, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600)), Runs: runs,
	}
}

// TestSaveVerifyRemove checks that a submission has the rows that kernelbot needs, and that no
// row is left of it.
func TestSaveVerifyRemove(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	must.Equal(t, map[string]int{}, postgres.Rows(t, admin)) // after Open
	r := record(t, "kbnode-e2e-1")
	st, err := s.Save(t.Context(), r)
	must.Do(t, err)
	must.Err(t, s.Verify(t.Context(), st, r), "")
	must.Equal(t, map[string]int{"leaderboard": 1, "gpu_type": 1, "user_info": 1, "code_files": 1, "submission": 1, "runs": 3}, postgres.Rows(t, admin))

	// Query as kernelbot's own ranking does.
	var user, runner, stdout, nul, hash string
	var score float64
	must.Do(t, admin.QueryRow(t.Context(), `SELECT u.user_name, r.runner, r.score::float8 FROM leaderboard.runs r
		JOIN leaderboard.submission s ON r.submission_id = s.id JOIN leaderboard.leaderboard l ON s.leaderboard_id = l.id
		JOIN leaderboard.user_info u ON u.id = s.user_id
		WHERE l.name = $1 AND NOT r.secret AND r.score IS NOT NULL AND r.passed`, r.Leaderboard).Scan(&user, &runner, &score))
	must.Equal(t, []any{"kbnode e2e", "B200_BK", r.Runs[2][5]}, []any{user, runner, score})
	must.Do(t, admin.QueryRow(t.Context(), `SELECT meta->>'stdout', result->>('nul'||chr(65533)), (SELECT hash FROM leaderboard.code_files)
		FROM leaderboard.runs WHERE mode = 'test' AND compilation IS NOT NULL`).Scan(&stdout, &nul, &hash))
	must.Equal(t, []string{"out", "a\ufffd\ufffd", st.Hash}, []string{stdout, nul, hash})

	// Remove also removes kernelbot's own rows.
	postgres.Exec(t, admin, "INSERT INTO leaderboard.submission_job_status (submission_id, status) VALUES ($1, 'succeeded')", st.Submission)
	postgres.Exec(t, admin, "INSERT INTO leaderboard.rate_limit (leaderboard_id, mode_category, max_submissions_per_hour) VALUES ($1, 'test', 1)", st.Leaderboard)
	for range 2 {
		must.Err(t, s.Remove(t.Context(), st), "")
		must.Equal(t, map[string]int{}, postgres.Rows(t, admin))
	}
	must.Err(t, s.Verify(t.Context(), st, r), "check leaderboard \"kbnode-e2e-1\": leaderboard: not as it was sent: the row\ngpu_type: ")
}

// TestVerifyFinds checks that Verify finds every changed column at once.
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	st, err := s.Save(t.Context(), r)
	must.Do(t, err)
	var found []string
	for _, change := range []struct{ table, set string }{
		{"leaderboard", "name = 'x', deadline = deadline + interval '1 microsecond', task = jsonb_set(task, '{b}', '2'), description = NULL"},
		{"gpu_type", "gpu_type = 'H100_BK'"},
		{"user_info", "user_name = NULL"},
		{"code_files", "code = ''"},
		{"submission", "file_name = 'x', submission_time = now(), done = false"},
		{"runs", "start_time = now(), end_time = now(), mode = 'x', secret = NOT secret, runner = 'x', score = 7, passed = NOT passed, compilation = '{}', meta = NULL, result = '[]', system_info = '{}'"},
	} {
		postgres.Exec(t, admin, "UPDATE leaderboard."+change.table+" SET "+change.set)
		var columns []string
		for part := range strings.SplitSeq(change.set, ", ") {
			if column, _, is := strings.Cut(part, " = "); is {
				columns = append(columns, column)
			}
		}
		found = append(found, change.table+": not as it was sent: "+strings.Join(columns, ", "))
	}
	found = append(found, found[5], found[5])
	must.Equal(t, strings.Join(found, "\n"), strings.TrimPrefix(s.Verify(t.Context(), st, r).Error(), `check leaderboard "kbnode-e2e-1": `))
}

// TestSharedRows checks that others' leaderboard, user and code stay, in any order.
func TestSharedRows(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	postgres.Exec(t, admin, "INSERT INTO leaderboard.user_info (id, user_name) VALUES ('42', 'somebody')")
	postgres.Exec(t, admin, "INSERT INTO leaderboard.code_files (code) VALUES ($1)", []byte(r.Code))
	st, err := s.Save(t.Context(), r)
	must.Do(t, err)
	if st.UserIsNew || st.CodeIsNew {
		t.Errorf("%+v", st)
	}
	must.Err(t, errors.Join(s.Verify(t.Context(), st, r), s.Remove(t.Context(), st)), "")
	var name string
	must.Do(t, admin.QueryRow(t.Context(), "SELECT user_name FROM leaderboard.user_info").Scan(&name))
	must.Equal(t, "somebody", name)
	must.Equal(t, map[string]int{"user_info": 1, "code_files": 1}, postgres.Rows(t, admin))

	r.UserID, r.Code = "43", "another"
	if st, err = s.Save(t.Context(), r); err != nil || !st.UserIsNew || !st.CodeIsNew {
		t.Fatal(st, err)
	}
	postgres.Exec(t, admin, `INSERT INTO leaderboard.leaderboard (name, deadline, task, forum_id) VALUES ('theirs', now(), '{}', 1)`)
	postgres.Exec(t, admin, `INSERT INTO leaderboard.submission (leaderboard_id, file_name, user_id, code_id, submission_time) VALUES ($1, 'f', '42', $2, now())`, st.Leaderboard, st.Code)
	before := postgres.Rows(t, admin)
	must.Err(t, s.Remove(t.Context(), st), `remove leaderboard "kbnode-e2e-1": PostgreSQL refuses: "update or delete on table \"leaderboard\" violates foreign key`)
	must.Equal(t, before, postgres.Rows(t, admin))
	postgres.Exec(t, admin, "UPDATE leaderboard.submission SET leaderboard_id = (SELECT id FROM leaderboard.leaderboard WHERE name = 'theirs') WHERE user_id = '42'")
	must.Err(t, s.Remove(t.Context(), st), "")
	must.Equal(t, map[string]int{"leaderboard": 1, "submission": 1, "user_info": 1, "code_files": 2}, postgres.Rows(t, admin))
}

// TestConcurrent checks many calls at once with the same user and code: none fails or
// gets in another's way, and in the end only what the first of them shared is left.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	var all sync.WaitGroup
	for i := range 8 {
		r := record(t, fmt.Sprint("kbnode-e2e-", i))
		all.Go(func() {
			for range 3 {
				st, err := s.Save(t.Context(), r)
				if err == nil {
					err = errors.Join(s.Verify(t.Context(), st, r), s.Remove(t.Context(), st))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	left := postgres.Rows(t, admin)
	delete(left, "user_info")
	delete(left, "code_files")
	must.Equal(t, map[string]int{}, left)
}

// TestSaveRefuses checks that a submission of which something cannot be stored leaves nothing.
func TestSaveRefuses(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e")
	r.Runs[2][10] = nil // the machine
	_, err := s.Save(t.Context(), r)
	must.Err(t, err, `store leaderboard "kbnode-e2e": PostgreSQL refuses: "null value in column \"system_info\"`)
	must.Err(t, err, "; nothing was changed")
	must.Equal(t, map[string]int{}, postgres.Rows(t, admin))
}

// TestOpenRefuses checks what Open says about the database, without the password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, admin, dsn := database(t)
	name := dsn[strings.Index(dsn, "dbname="):]
	postgres.Exec(t, admin, `CREATE USER reader; GRANT USAGE ON SCHEMA leaderboard TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA leaderboard TO reader`)
	postgres.Exec(t, admin, "CREATE DATABASE emptied")
	postgres.Exec(t, server.Connect(t, "emptied"), "DROP SCHEMA leaderboard CASCADE")
	postgres.Exec(t, admin, "CREATE DATABASE old")
	postgres.Exec(t, server.Connect(t, "old"), "ALTER TABLE leaderboard.runs DROP COLUMN system_info")
	for _, c := range []struct{ dsn, err string }{
		{"user=secretive " + name, `refuses the connection (SQLSTATE "28P01")`},
		{"user=postgres dbname=w0rd", `refuses the connection (SQLSTATE "3D000")`},
		{"user=postgres dbname=emptied", `"relation \"leaderboard.leaderboard\" does not exist"; apply kernelbot's migrations`},
		{"user=postgres dbname=old", `"column \"system_info\" of relation \"runs\" does not exist"; apply kernelbot's migrations`},
		{"user=reader " + name, `"permission denied for table leaderboard"; apply kernelbot's migrations, and let the user write`},
		{"user=postgres w0rd=1 " + name, `refuses the connection (SQLSTATE "42704")`},
	} {
		_, err := Open(t.Context(), "host="+server.Dir+" password=pa55-w0rd "+c.dsn)
		must.Err(t, err, c.err)
		hides(t, err)
	}
}
