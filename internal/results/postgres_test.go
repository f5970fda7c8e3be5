//go:build postgres

package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/test/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) {
	s, err := postgres.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server = s
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var databases atomic.Int32

// database creates a database with kernelbot's tables and opens it. The connection is
// the administrator's own.
func database(t *testing.T) (*Store, *pgx.Conn, string) {
	t.Helper()
	name := fmt.Sprint("kernelbot", databases.Add(1))
	admin := administrator(t, "postgres")
	must(t, admin, "CREATE DATABASE "+name)
	dsn := server.DSN("postgres", name)
	s, err := Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return s, administrator(t, name), dsn
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

func must(t *testing.T, c *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// rows counts the rows in each of kernelbot's tables.
func rows(t *testing.T, c *pgx.Conn) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, table := range []string{"leaderboard", "gpu_type", "user_info", "code_files", "submission", "submission_job_status", "runs"} {
		var n int
		if err := c.QueryRow(t.Context(), "SELECT count(*) FROM leaderboard."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			count[table] = n
		}
	}
	return count
}

func same[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s:\n%s", what, diff)
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v does not say %q", err, w)
		}
	}
}

// record is a submission with three runs of every shape.
func record(t *testing.T, name string) Record {
	t.Helper()
	runs, err := RunsOf([]byte(resultOf(
		evaluated("test", compiled, true, `{"check":"pass","nul\u0000":"a\u0000\ud800","it's":"\"; DROP TABLE leaderboard.runs; --"}`),
		evaluated("benchmark", "null", false, `{}`),
		evaluated("leaderboard", "null", true, three))), "geom", "B200_BK")
	if err != nil {
		t.Fatal(err)
	}
	return Record{
		Leaderboard: name, Description: "one 'two' three",
		Task: json.RawMessage(`{"lang":"py","files":{"a.py":"é\n"},"seed":null,"b":1.50,"tests":[{"n":1e2}]}`), GPU: "B200_BK",
		UserID: "42", UserName: "kbnode e2e", File: "submission.py", Code: "print('é')\x00\n",
		Submitted: time.Date(2027, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600)), Runs: runs,
	}
}

func TestSaveVerifyRemove(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	st, err := s.Save(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), st, r); err != nil {
		t.Error(err)
	}
	same(t, "rows", map[string]int{"leaderboard": 1, "gpu_type": 1, "user_info": 1, "code_files": 1, "submission": 1, "runs": 3}, rows(t, admin))

	// Query as kernelbot's own ranking does.
	var user, runner string
	var score float64
	if err := admin.QueryRow(t.Context(), `SELECT u.user_name, r.runner, r.score::float8 FROM leaderboard.runs r
		JOIN leaderboard.submission s ON r.submission_id = s.id JOIN leaderboard.leaderboard l ON s.leaderboard_id = l.id
		JOIN leaderboard.user_info u ON u.id = s.user_id
		WHERE l.name = $1 AND NOT r.secret AND r.score IS NOT NULL AND r.passed`, r.Leaderboard).Scan(&user, &runner, &score); err != nil {
		t.Fatal(err)
	}
	same(t, "ranked", []any{r.UserName, "B200_BK", *r.Runs[2].Score}, []any{user, runner, score})
	var stdout, nul string
	if err := admin.QueryRow(t.Context(), `SELECT meta->>'stdout', result->>('nul'||chr(65533)) FROM leaderboard.runs WHERE mode = 'test'`).Scan(&stdout, &nul); err != nil {
		t.Fatal(err)
	}
	same(t, "documents", []string{"out", "a\ufffd\ufffd"}, []string{stdout, nul})

	// What Remove needs survives as JSON, and it also removes kernelbot's own rows.
	must(t, admin, "INSERT INTO leaderboard.submission_job_status (submission_id, status) VALUES ($1, 'succeeded')", st.Submission)
	must(t, admin, "INSERT INTO leaderboard.rate_limit (leaderboard_id, mode_category, max_submissions_per_hour) VALUES ($1, 'test', 1)", st.Leaderboard)
	kept, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var again Stored
	if err := json.Unmarshal(kept, &again); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Remove(t.Context(), again); err != nil {
			t.Error(err)
		}
		same(t, "rows left", map[string]int{}, rows(t, admin))
	}
	says(t, s.Verify(t.Context(), st, r), `check leaderboard "kbnode-e2e-1"`, "submission: the row is missing", "0 are stored, not 3")
}

// TestVerifyFinds checks that Verify finds every changed column at once.
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	st, err := s.Save(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	change := map[string][]string{
		"leaderboard": {"name = 'x'", "deadline = deadline + interval '1 microsecond'", "task = jsonb_set(task, '{b}', '2')", "description = NULL"},
		"gpu_type":    {"gpu_type = 'H100_BK'"},
		"user_info":   {"user_name = NULL"},
		"code_files":  {"code = ''"},
		"submission":  {"file_name = E'\\x1b'", "submission_time = now()", "done = false"},
		"runs": {"mode = 'x'", "secret = NOT secret", "runner = 'x'", "start_time = now()", "end_time = now()", "passed = NOT passed", "score = 7",
			"compilation = '{}'", "meta = NULL", "result = '[]'", "system_info = '{}'"},
	}
	var found []string
	for table, sets := range change {
		must(t, admin, "UPDATE leaderboard."+table+" SET "+strings.Join(sets, ", "))
		for _, set := range sets {
			column, _, _ := strings.Cut(set, " ")
			switch table {
			case "runs":
				for _, mode := range []string{"test", "benchmark", "leaderboard"} {
					found = append(found, fmt.Sprintf("run %q: %s: ", mode, column))
				}
			default:
				found = append(found, table+": "+column+": ")
			}
		}
	}
	err = s.Verify(t.Context(), st, r)
	says(t, err, found...)
	if n := strings.Count(err.Error(), "\n") + 1; n != len(found) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%d differences, not %d:\n%v", n, len(found), err)
	}
	must(t, admin, "DELETE FROM leaderboard.runs WHERE mode = 'x' AND id = $1", st.Runs[1])
	says(t, s.Verify(t.Context(), st, r), "runs: 2 are stored, not 3", `run "benchmark": the row is missing`)
}

// TestSharedRows checks that others' leaderboard, user and code stay, in any order.
func TestSharedRows(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	must(t, admin, "INSERT INTO leaderboard.user_info (id, user_name) VALUES ('42', 'somebody')")
	must(t, admin, "INSERT INTO leaderboard.code_files (code) VALUES ($1)", []byte(r.Code))
	st, err := s.Save(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if st.UserIsNew || st.CodeIsNew {
		t.Errorf("%+v", st)
	}
	if err := errors.Join(s.Verify(t.Context(), st, r), s.Remove(t.Context(), st)); err != nil {
		t.Error(err)
	}
	same(t, "others' rows", map[string]int{"user_info": 1, "code_files": 1}, rows(t, admin))

	r.UserID, r.Code = "43", "another"
	if st, err = s.Save(t.Context(), r); err != nil || !st.UserIsNew || !st.CodeIsNew {
		t.Fatal(st, err)
	}
	must(t, admin, `INSERT INTO leaderboard.leaderboard (name, deadline, task, forum_id) VALUES ('theirs', now(), '{}', 1)`)
	their := "INSERT INTO leaderboard.submission (leaderboard_id, file_name, user_id, code_id, submission_time) SELECT id, 'f', $2, $3, now() FROM leaderboard.leaderboard WHERE name = $1"
	must(t, admin, their, r.Leaderboard, "42", st.Code)
	before := rows(t, admin)
	err = s.Remove(t.Context(), st)
	if says(t, err, `remove leaderboard "kbnode-e2e-1"`, "other submissions: 1", "nothing was changed"); !errors.Is(err, ErrShared) {
		t.Error(err)
	}
	same(t, "rows after a refusal", before, rows(t, admin))
	must(t, admin, "UPDATE leaderboard.submission SET leaderboard_id = (SELECT id FROM leaderboard.leaderboard WHERE name = 'theirs') WHERE user_id = '42'")
	// A run that someone else added to our submission prevents it too.
	must(t, admin, "INSERT INTO leaderboard.runs (submission_id, start_time, end_time, mode, secret, runner, passed, system_info) VALUES ($1, now(), now(), 'x', false, 'x', true, '{}')", st.Submission)
	if err = s.Remove(t.Context(), st); !errors.Is(err, ErrShared) {
		t.Error(err)
	}
	must(t, admin, "DELETE FROM leaderboard.runs WHERE mode = 'x'")
	if err = s.Remove(t.Context(), st); err != nil {
		t.Error(err)
	}
	same(t, "rows that others use", map[string]int{"leaderboard": 1, "submission": 1, "user_info": 1, "code_files": 2}, rows(t, admin))

	// In a database that was set up again, the IDs are others'.
	must(t, admin, "DELETE FROM leaderboard.submission")
	must(t, admin, "UPDATE leaderboard.leaderboard SET id = $1", st.Leaderboard)
	must(t, admin, "UPDATE leaderboard.code_files SET code = 'theirs' WHERE id = $1", st.Code)
	before = rows(t, admin)
	if err = s.Remove(t.Context(), st); err != nil {
		t.Error(err)
	}
	same(t, "rows of another database", before, rows(t, admin))
}

func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	r := record(t, "kbnode-e2e-1")
	if _, err := s.Save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	before := rows(t, admin)
	r.UserID, r.Code = "43", "another"
	st, err := s.Save(t.Context(), r)
	if says(t, err, `store leaderboard "kbnode-e2e-1"`, "choose another name"); !errors.Is(err, ErrExists) || st.Leaderboard != 0 {
		t.Error(st, err)
	}
	same(t, "rows", before, rows(t, admin))
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
	left := rows(t, admin)
	delete(left, "user_info")
	delete(left, "code_files")
	same(t, "rows left", map[string]int{}, left)

	// The same name: one wins.
	var won atomic.Int32
	r := record(t, "kbnode-e2e")
	for range 8 {
		all.Go(func() {
			if _, err := s.Save(t.Context(), r); err == nil {
				won.Add(1)
			} else if !errors.Is(err, ErrExists) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	same(t, "winners", 1, won.Load())
	same(t, "leaderboards", 1, rows(t, admin)["leaderboard"])
}

func TestSaveRefuses(t *testing.T) {
	t.Parallel()
	s, admin, _ := database(t)
	for _, c := range []struct {
		name   string
		change func(*Record)
		err    string
	}{
		{"U+0000 in the task", func(r *Record) { r.Task = json.RawMessage(`{"files":{"a":"\u0000"}}`) }, "U+0000"},
		{"a number that is too large", func(r *Record) { r.Task = json.RawMessage(`{"a":1e999999}`) }, "PostgreSQL refuses"},
		{"a run without its machine", func(r *Record) { r.Runs[2].System = nil }, "system_info"},
	} {
		r := record(t, "kbnode-e2e")
		c.change(&r)
		_, err := s.Save(t.Context(), r)
		says(t, err, c.err)
		same(t, c.name, map[string]int{}, rows(t, admin))
	}
}
